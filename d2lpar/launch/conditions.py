"""Under which conditions something is measured: the machine, and who else uses it."""

import contextlib
import datetime
import os
import platform
import re

import torch


def busy_seconds():
    """Seconds that all processors have worked since the start; 0 where not known."""
    with contextlib.suppress(OSError, ValueError), open("/proc/stat", "rb") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
        return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def cores():
    """The number of processors that this process may use."""
    mine = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return len(mine(0))


def machine(device="cpu"):
    """Under which conditions figures are measured; no name of the machine or user."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    processor, count = processor_name(), cores()
    name = f"{count} CPU core{'s' if count > 1 else ''}, {processor}"
    if device != "cpu":
        name = f"{torch.cuda.device_count()}x{torch.cuda.get_device_name(0)}"
    return {
        "name": name,
        "device": str(device),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "cores": count,
        "processor": processor,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": [round(x, 2) for x in load],
    }


def processor_name():
    """Return the model of this machine's processor, such as "AMD EPYC"."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return re.search(r"model name\s*: (.*)", file.read())[1]
    except (OSError, TypeError):
        return platform.processor() or platform.machine()
