"""A GPT on data x pipeline x tensor ranks, with what chapters 07 to 13 built.

`grid` has the ranks and their groups, `gpt_parts` the split layers, `pipeline` sends
between stages, `model` puts them together, `costs` counts what each axis sends.
"""

from .grid import AXES, Mesh, bytes_per_axis
from .model import Config, MeshModel, check_batch
