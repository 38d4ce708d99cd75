"""A plugin of pytest: nbval speaks to its kernels through sockets that are files.

A port that was free when it was chosen can be taken when the kernel starts, and the
kernel ends, or waits for ever at its end, where the port was that of its outputs.
"""

import nbval.kernel
from jupyter_client.manager import KernelManager

from d2lpar.cli.execution import without_ports


def manager(**options):
    return KernelManager(**without_ports(), **options)


nbval.kernel.KernelManager = manager
