"""Modules that 0.1.0 had in other places, for notebooks that were handed out."""

import importlib
import importlib.abc
import importlib.util
import sys

_PLACES = """
allreduce: costs fastest half shared_memory
experts: nodes=expert_nodes
failures: mesh_saving saving several_nodes
hybrid: domain split_choice
launch: nodes=world.nodes run=world.launch
mesh: costs=mesh_costs gpt_parts grid pipeline=mesh_pipeline
network_partition: layers
pipeline: delayed schedule
report: plots=show.plots units=show.units
shared: d2l_loader=tools.d2l_loader data footprint model_zoo played=world.played
sim: cluster=world.cluster meter=world.meter
tensor_parallel: trips vocabulary
"""
MOVED = {"world": "launch", "show": "report", "tools": "cli"}
for _line in _PLACES.strip().splitlines():
    _room, _, _names = _line.partition(": ")
    for _name in _names.split():
        _new, _, _old = _name.partition("=")
        MOVED[_old or _new] = f"{_room}.{_new}"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import by an old name gives the module that has its contents now."""

    def find_spec(self, fullname, path=None, target=None):
        """Return a spec for an old name; None for every other one."""
        package, _, old = fullname.partition(".")
        if package == "d2lpar" and old in MOVED:
            return importlib.util.spec_from_loader(fullname, self)
        return None

    def exec_module(self, module):
        """Put the module of today in the place of the empty one."""
        name = module.__spec__.name
        old = name.removeprefix("d2lpar.")
        sys.modules[name] = importlib.import_module(f"d2lpar.{MOVED[old]}")
