"""Everything private to torch that the worlds need, in one folder.

`here` knows which rank this thread is, `isolation` lets threads be ranks, `group` is a
process group written in Python, `patches` are torch's functions that ranks call in
another way, `tensors` what is private about tensors, and `action_lists` what torch's
pipelines would do.  No other module may use it.
"""

from .action_lists import action_lists
from .draws import done_on_gpus, done_on_meshes, number_of_steps
from .functional import carried_out
from .futures import Later
from .group import LAST_TAG, AllOf, CallWork, Group, join_world, reduction, register
from .here import current_engine, rank_process
from .isolation import isolated_ranks, loss_parallel, rank_thread, set_loss_parallel
from .patches import watch_calls
from .rings import torch_ring_attention
from .tensors import (
    FakeTensor,
    TorchDispatchMode,
    after_backward,
    copy_raw,
    dense_parts,
    devices_as_they_are,
    inside_backward,
    is_dense,
    load_compiler,
    never_compiled,
    raw_tensors,
    replace_file_writer,
    storage_id,
    tensors_in,
)
