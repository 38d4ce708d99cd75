"""`python -m d2lpar`: the course from the command line."""

from .cli import main

if __name__ == "__main__":
    main()
