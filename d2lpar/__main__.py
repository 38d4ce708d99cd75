"""`python -m d2lpar`: the course from the command line.

This file alone is plain enough for an old Python, which gets a sentence.
"""

import platform
import sys


def main():
    """The command line, or one sentence about what it lacks."""
    if sys.version_info < (3, 11):  # noqa: UP036, the others cannot say it
        here = platform.python_version()
        sys.exit(f"d2lpar: This is Python {here}. Install Python 3.11 or newer.")
    try:
        from .cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        advice = "From the clone: pip install -e ."
        sys.exit(f"d2lpar: {error.name} is not installed. {advice}")
    run()


if __name__ == "__main__":
    main()
