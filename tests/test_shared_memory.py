"""`allreduce.shared_memory`: right in every case, sends nothing, leaves nothing."""

import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import EVERYWHERE, ROOT, WATCHDOG, WORLDS, completed, family_of
from d2lpar.allreduce import shared_memory
from d2lpar.allreduce.shared_memory import add_piece, shared_memory_allreduce
from d2lpar.launch import common_memory

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
DTYPES += [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
BIG = 1_000_003  # elements: through the board in pieces


def values(r, size, dtype):
    """What rank r holds: other numbers on every rank, with many digits."""
    generator = torch.Generator().manual_seed(1000 * r + size)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 10, (size,), generator=generator).to(dtype)


def truth(n, size, dtype):
    """The sum of all ranks' values, in their order."""
    total = values(0, size, dtype)
    for r in range(1, n):
        total = total + values(r, size, dtype)
    return total


def sums(cases):
    """Every case gives the serial sum to the last bit; returns what was sent."""
    n, r = dist.get_world_size(), dist.get_rank()
    for size, dtype in cases:
        mine = values(r, size, dtype)
        address = mine.data_ptr()
        assert shared_memory_allreduce(mine) is None
        assert mine.data_ptr() == address
        assert torch.equal(mine, truth(n, size, dtype)), (size, dtype)


@pytest.mark.parametrize(("world", "n"), EVERYWHERE)
def test_every_size_and_dtype_gives_the_bits_of_the_serial_sum(n, world):
    small = {0, 1, n - 1, n, n + 1, 1001}
    cases = [(size, dtype) for dtype in DTYPES for size in sorted(small, reverse=True)]
    big = [(BIG, torch.float32), (3, torch.float32), (BIG, torch.int64)]
    run = d2lpar.run(sums, cases + big, world_size=n, backend=world)
    assert run.warnings == []


def test_native_agrees():
    def both():
        for dtype in DTYPES:
            for size in (1, 1000):
                x = values(dist.get_rank(), size, dtype)
                y = x.clone()
                shared_memory_allreduce(x)
                dist.all_reduce(y)
                if dtype.is_floating_point or dtype.is_complex:
                    wide = torch.complex128 if dtype.is_complex else torch.float64
                    assert torch.allclose(x.to(wide), y.to(wide), rtol=0.02, atol=0.1)
                else:
                    assert torch.equal(x, y)

    for world in WORLDS:
        d2lpar.run(both, world_size=3, backend=world)


@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_pieces_of_a_small_board(n, pieces, monkeypatch):
    monkeypatch.setattr(shared_memory, "BYTES", 64 * n * n)  # cells of 64 bytes
    seen = []
    monkeypatch.setattr(
        shared_memory, "add_piece", lambda *a: (seen.append(len(a[0])), add_piece(*a))
    )
    for size in (8 * n * pieces - 1, 8 * n * pieces):
        d2lpar.run(sums, [(size, torch.float64)] * 2, world_size=n, backend="sim")
    assert seen == [n] * (n * pieces * 4)


def layouts():
    r = dist.get_rank()

    def same(x, *views):
        for view in views:
            y = x.clone()
            expected = view(y).clone(memory_format=torch.contiguous_format)
            dist.all_reduce(expected)
            rest = y.clone()
            view(rest).zero_()
            shared_memory_allreduce(view(y))
            assert torch.equal(view(y), expected)
            view(y).zero_()
            assert torch.equal(y, rest)  # nothing around it was touched

    whole = values(r, 60, torch.int64).view(3, 4, 5)
    same(whole, lambda x: x.transpose(0, 2), lambda x: x[:, 1:3], lambda x: x[..., ::2])
    same(whole, lambda x: x[1], lambda x: x[0, 0, 0], lambda x: x[:, :0])
    parameter = torch.nn.Parameter(values(r, 6, torch.float64).view(2, 3))
    shared_memory_allreduce(parameter)
    n = dist.get_world_size()
    assert torch.equal(parameter.detach().view(-1), truth(n, 6, torch.float64))
    assert parameter.requires_grad and parameter.is_leaf and parameter.grad is None


@pytest.mark.parametrize("world", WORLDS)
def test_views_that_are_not_contiguous(world):
    d2lpar.run(layouts, world_size=3, backend=world)


def in_groups():
    r = dist.get_rank()
    groups = [dist.new_group(ranks) for ranks in ([0, 2, 3], [3, 1], [4])]
    found = []
    for k in range(3):
        for group in groups:
            if dist.get_rank(group) >= 0:
                x = torch.full([1000], float(10**r + k))
                shared_memory_allreduce(x, group)
                found.append(x[0].item())
        y = torch.ones(7)
        shared_memory_allreduce(y)
        found.append(y.sum().item())
    return found, len(shared_memory.boards)


@pytest.mark.parametrize("world", WORLDS)
def test_groups_have_boards_of_their_own(world):
    run = d2lpar.run(in_groups, world_size=5, backend=world)
    found = [numbers for numbers, _ in run.results]
    first = [1 + 100 + 1000 + 3 * k for k in range(3)]
    second = [1000 + 10 + 2 * k for k in range(3)]
    alone = [10000 + k for k in range(3)]
    for r, member in enumerate([[first], [second], [first], [first, second], [alone]]):
        assert found[r] == [x for k in range(3) for x in [g[k] for g in member] + [35]]
    if world == "gloo":  # threads share the dictionary, processes do not
        assert [count for _, count in run.results] == [2, 2, 2, 3, 1]


def calls(count):
    for k in range(count):
        shared_memory_allreduce(torch.ones(10 * k))


@pytest.mark.parametrize("world", WORLDS)
def test_later_calls_send_nothing(world):
    one, many = (
        d2lpar.run(calls, k, world_size=4, backend=world) for k in (2, 7)
    )  # the first tensor is empty
    assert many.messages == one.messages
    assert max(many.bytes_sent) < 1000
    none = d2lpar.run(calls, 1, world_size=4, backend=world)
    assert none.messages == [0] * 4


def test_two_simulations_are_the_same():
    first, second = (
        d2lpar.run(calls, 4, world_size=3, backend="sim", cluster="4xH100")
        for _ in range(2)
    )
    assert str(first.timeline) == str(second.timeline)
    assert first.elapsed == second.elapsed > 0


# Errors


def test_a_gpu_tensor_is_refused():
    with pytest.raises(d2lpar.RankError, match="not on meta: use ring_allreduce"):
        d2lpar.run(calls, 2, world_size=2, backend="sim", device="meta")


def test_ranks_on_two_hosts_are_named():
    with pytest.raises(d2lpar.RankError, match=r"Ranks \[2, 3\].*one host") as caught:
        d2lpar.run(calls, 2, world_size=4, backend="sim", cluster="2x2xA100")
    assert "not find the memory of its rank 0" in str(caught.value)


def test_inside_one_of_two_hosts_it_works():
    def inside():
        nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = torch.ones(3)
        shared_memory_allreduce(x, nodes[dist.get_rank() // 2])
        return x.sum().item()

    run = d2lpar.run(inside, world_size=4, backend="sim", cluster="2x2xA100")
    assert run.results == [6] * 4


def test_a_file_of_another_host_is_not_mapped(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    mark = common_memory._mark(path)
    assert common_memory._mapped(path, mark, 0) is not None
    assert common_memory._mapped(path, (mark[0] + 1, *mark[1:]), 0) is None
    assert common_memory._mapped(path, mark, 1) is None
    assert common_memory._mapped(tmp_path / "none", mark, 0) is None


@pytest.mark.parametrize("world", WORLDS)
def test_sizes_that_differ_are_named(world):
    def uneven():
        shared_memory_allreduce(torch.ones(10))
        shared_memory_allreduce(torch.ones(10 + (dist.get_rank() == 1)))

    with pytest.raises(d2lpar.RankError, match=r"bring \[40, 44, 40\] bytes"):
        d2lpar.run(uneven, world_size=3, backend=world)


@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_that_is_not_in_the_group(world):
    def stranger():
        group = dist.new_group([0, 1])
        if dist.get_rank() == 2:
            shared_memory_allreduce(torch.ones(3), group)

    with pytest.raises(d2lpar.RankError, match="not in the group"):
        d2lpar.run(stranger, world_size=3, backend=world)


# Nothing is left


def boards(process):
    maps = process.memory_maps(grouped=False)
    return [m for m in maps if "d2lpar-board" in m.path]


def inventory():
    """Open files, children, mapped boards, names in /dev/shm and in /tmp."""
    gc.collect()
    me = psutil.Process()
    folders = Path("/dev/shm"), Path(tempfile.gettempdir())
    names = [path for folder in folders for path in folder.glob("d2lpar-*")]
    ranks = sum(len(server.children(recursive=True)) for server in me.children())
    return me.num_fds(), ranks, boards(me), names, len(shared_memory.boards)


def ends(how):
    x = torch.ones(300_000)
    for k in range(4):
        shared_memory_allreduce(x)
        if k == 2 and dist.get_rank() == 1:
            if how == "raises":
                raise ZeroDivisionError("on purpose")
            if how == "leaves":
                return
            if how == "SIGKILL":
                os.kill(os.getpid(), 9)
            if how == "exits":
                os._exit(3)


CULPRITS = {
    "raises": "rank 1 raised ZeroDivisionError",
    "leaves": "rank 1: returned",
    "SIGKILL": "rank 1 died by SIGKILL",
    "exits": "rank 1 died with exit code 3",
}


@pytest.mark.parametrize(
    ("world", "how"),
    [("sim", "raises"), ("sim", "leaves"), *(("gloo", how) for how in CULPRITS)],
)
def test_nothing_is_left_whatever_happens(world, how):
    d2lpar.run(ends, "well", world_size=3, backend=world)
    before = inventory()
    d2lpar.run(ends, "well", world_size=3, backend=world)
    assert inventory() == before
    with pytest.raises(d2lpar.RankError, match=CULPRITS[how]):
        d2lpar.run(ends, how, world_size=3, backend=world, timeout=5)
    assert inventory() == before
    assert before[2:] == ([], [], 0)


def test_memory_and_pipes_go_with_the_group():
    def groups():
        me = psutil.Process()

        def held():
            gc.collect()
            return me.num_fds(), len(boards(me)), len(shared_memory.boards)

        counts = []
        for _ in range(3):
            group = dist.new_group([0, 1])
            before = held()
            shared_memory_allreduce(torch.ones(5), group)
            during = held()
            dist.destroy_process_group(group)
            del group
            counts.append((during[1:], held()[1:], held()[0] < during[0], before[1:]))
        return counts

    run = d2lpar.run(groups, world_size=2, backend="gloo")
    assert run.results == [[((1, 1), (0, 0), True, (0, 0))] * 3] * 2


KILLED = """
import time, torch, torch.distributed as dist, d2lpar
from d2lpar.allreduce.shared_memory import shared_memory_allreduce

def forever():
    x = torch.zeros(300_000)
    while True:
        shared_memory_allreduce(x)

def once():
    shared_memory_allreduce(torch.zeros(3))

d2lpar.run(once, world_size=3, backend="gloo")
print("ready", flush=True)
d2lpar.run(forever, world_size=3, backend="gloo")
"""


def test_nothing_is_left_when_the_kernel_is_killed():
    before = inventory()
    command = [sys.executable, "-c", KILLED]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        family = family_of(child.pid, 5)
        time.sleep(0.3)
        child.kill()
        gone, alive = psutil.wait_procs(family, timeout=WATCHDOG)
    assert len(gone) >= 5 and not alive
    assert inventory() == before


# Parts


def test_a_launcher_hears_of_long_series():
    def series():
        x = torch.ones(3)
        for k in range(4):
            if k == 2:
                shared_memory.board_of(None).heard -= 2  # a second has passed
            shared_memory_allreduce(x)

    run = d2lpar.run(series, world_size=2, backend="gloo")
    names = [e.name for e in run.timeline.events if e.rank == 0 and e.stream == "comm"]
    assert names.count("barrier") == 1


def test_a_rank_that_comes_late_is_waited_for():
    def late():
        x = torch.ones(3)
        for k in range(3):
            time.sleep(0.05 * (dist.get_rank() == k))
            shared_memory_allreduce(x)
        return x.tolist()

    for world in WORLDS:
        run = d2lpar.run(late, world_size=3, backend=world)
        assert run.results == [[27] * 3] * 3


def test_where_files_need_names_they_are_removed(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []
    mapped = common_memory._mapped

    def watched(*address):
        seen.append(os.listdir(tmp_path))
        return mapped(*address)

    monkeypatch.setattr(common_memory, "_mapped", watched)
    d2lpar.run(sums, [(1000, torch.float64)], world_size=3, backend="sim")
    assert len(seen) == 3 and all(len(names) == 1 for names in seen)
    assert os.listdir(tmp_path) == []


def test_where_there_are_no_bells_ranks_look_now_and_then():
    def silent():
        x = torch.ones(3)
        shared_memory_allreduce(x)
        bell = shared_memory.board_of(None).bell
        bell.others = [None] * len(bell.others)
        for k in range(3):
            time.sleep(0.02 * (dist.get_rank() == k))
            shared_memory_allreduce(x)
        return x.tolist()

    run = d2lpar.run(silent, world_size=3, backend="gloo")
    assert run.results == [[81] * 3] * 3


def test_patience_ends_with_a_sentence():
    bell = common_memory.Bell()
    common_memory.PATIENCE, patience = 0.01, common_memory.PATIENCE
    try:
        with pytest.raises(RuntimeError, match="No other rank has come"):
            bell.wait_until(lambda: False)
    finally:
        common_memory.PATIENCE = patience


def test_a_full_bell_does_not_block():
    ours, theirs = common_memory.Bell(), common_memory.Bell()
    ours.others = [common_memory._writable(*theirs.address)]
    for _ in range(70_000):  # a pipe holds 65,536 bytes
        ours.ring()
    looks = iter([False, False, True])
    theirs.wait_until(lambda: next(looks))
    assert next(looks, None) is None
    del theirs
    gc.collect()
    ours.ring()  # nobody is there any more


SCRIPT = """
import torch, torch.distributed as dist
from d2lpar.allreduce.shared_memory import shared_memory_allreduce
dist.init_process_group("gloo")
x = torch.arange(1000.0) * (1 + dist.get_rank())
shared_memory_allreduce(x)
assert torch.equal(x, 3 * torch.arange(1000.0))
print("right", flush=True)
dist.destroy_process_group()
"""


def test_plain_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", script]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = completed([sys.executable, *command], env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 2
