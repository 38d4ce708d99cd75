"""What a process loads that forks kernels: see `forked_kernels`."""

import os

os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"

import matplotlib.pyplot  # noqa: F401
