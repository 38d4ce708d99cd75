#!/bin/sh
# Print a Python 3.13: COLAB_PYTHON if it is set, else one from the path, pyenv or uv.
is_313() {
    "$1" -c "import sys; sys.exit(sys.version_info[:2] != (3, 13))" >/dev/null 2>&1
}

if [ -n "$COLAB_PYTHON" ]; then
    is_313 "$COLAB_PYTHON" && echo "$COLAB_PYTHON" && exit
    echo "COLAB_PYTHON=$COLAB_PYTHON is not a Python 3.13, which Colab has." >&2
    exit 1
fi
for python in python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python3.13 \
    "$(uv python find 3.13 2>/dev/null)" python3; do
    is_313 "$python" && echo "$python" && exit
done
echo "make colab needs Python 3.13, and neither the path nor pyenv nor uv has one." >&2
echo "Install it (pyenv install 3.13), or type make colab COLAB_PYTHON=/path/to/it." >&2
exit 1
