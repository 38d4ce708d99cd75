# @title Install d2lpar where it is missing (Colab, Kaggle). No package is replaced.
import os
import re
import subprocess
import sys
from urllib import parse, request

address = ""  # @param {type: "string"}

try:
    import d2lpar.launch.run
except ImportError as missing:
    found = None
    try:  # 1. Colab knows which notebook on GitHub this is, or is a copy of.
        server = "http://{COLAB_JUPYTER_IP}:{KMP_TARGET_PORT}/api/sessions"
        with request.urlopen(server.format(**os.environ), timeout=10) as reply:
            opened = parse.unquote(reply.read().decode())
        github = r"(https://github\.com/[\w.-]+/[\w.-]+)/blob/([\w./-]+?)"
        github += r"/(?:chapters/further|\w+)/\d\d_"
        found = re.search(github, opened)
        if not found:
            from google.colab import _message

            page = _message.blocking_request("get_ipynb", timeout_sec=10)
            found = re.search(github, str(page["ipynb"]["metadata"]))
    except Exception:
        pass  # This is not Colab, or Colab does not say.
    if found and not re.search("[@#=]", address):  # 2. A stamped version wins.
        address = f"git+{found[1]}@{found[2]}"
    if not address:
        raise SystemExit(
            f"d2lpar cannot be imported ({missing}), and nothing tells this cell where "
            "to get it. Write the address of the repository that this notebook is from "
            'into the cell, as in address = "git+https://github.com/OWNER/NAME", and '
            "run the cell again."
        ) from None
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["cloudpickle", "rich", "typer", address]
    limits = {"timeout": 600, "start_new_session": True}  # no password is asked for
    try:  # 3. pip fetches all of it before it installs any of it.
        subprocess.run(pip, check=True, capture_output=True, text=True, **limits)
    except subprocess.SubprocessError as error:
        why = re.findall(r"(?:ERROR|fatal): (.+)", str(error.stderr)) or [error]
        raise SystemExit(
            f"pip could not install d2lpar from {address}, and changed nothing "
            f"({why[0]}). Check the address and the network (on Kaggle, switch "
            "Internet on), then run this cell again."
        ) from None
    print(f"Installed d2lpar from {address}.")
