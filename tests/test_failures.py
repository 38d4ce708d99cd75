"""`d2lpar.failures`: what is saved survives a kill, and fits any mesh.

The long form of the kills is `make soak`.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import soak
import torch
import torch.distributed as dist

import d2lpar
from conftest import ROOT, WATCHDOG, completed
from d2lpar import RankError
from d2lpar.failures import reliability as f
from d2lpar.failures import saving, several_nodes
from d2lpar.failures.mesh_saving import cut_of, restore, run_state
from d2lpar.failures.saving import Piece
from d2lpar.launch import nodes as n
from d2lpar.mesh import Config, Mesh, MeshModel


def runs(fn, *args, ranks=2, backend="sim", **options):
    return d2lpar.run(fn, *args, world_size=ranks, backend=backend, **options)


# How often


def lost(tau, M, C):
    return 1 - f.daly(tau, M, C)


@pytest.mark.parametrize("M, C", [(1e4, 30.0), (1e5, 1.0), (3600.0, 600.0)])
def test_dalys_interval_loses_less_than_any_other_and_youngs_is_close(M, C):
    young, daly = (f.interval(M, C, order) for order in ("young", "daly"))
    assert young == math.sqrt(2 * M * C)
    best = min(lost(tau, M, C) for tau in (young * k / 500 for k in range(100, 1500)))
    assert lost(daly, M, C) == pytest.approx(best, rel=1e-3)
    assert best <= lost(young, M, C) < 1.2 * best
    assert daly < young


def test_a_checkpoint_that_takes_longer_than_a_run_lasts():
    assert f.interval(100.0, 300.0, "daly") == 100.0


@pytest.mark.parametrize("given", [(0, 1), (1, 0), (-1, 2), (math.inf, 1)])
def test_interval_refuses_times_that_are_none(given):
    with pytest.raises(ValueError, match="above 0 seconds"):
        f.interval(*given)
    with pytest.raises(ValueError, match="young"):
        f.interval(1, 1, order="old")


def test_goodput_by_simulation_agrees_with_dalys_formula():
    for C, R in ((30, 600), (200, 60), (5, 1800)):
        found = f.goodput(16384, days=8000, checkpoint=C, restart=R)
        assert found.simulated == pytest.approx(found.formula, abs=0.006)
        assert found.simulated + sum(found.lost.values()) == pytest.approx(1)


def test_youngs_interval_is_the_best_one_by_simulation():
    shares = [f.goodput(16384, days=4000, every=tau).simulated
              for tau in (200, 817, 4000)]  # fmt: skip
    assert shares[1] > max(shares[0], shares[2])


def test_writing_beside_the_training_gains_and_missing_spares_cost():
    usual = f.goodput(16384, days=4000)
    beside = f.goodput(16384, days=4000, checkpoint=1, background=30, every=300)
    few = f.goodput(16384, days=4000, spares=6, repair=86400.0)
    many = f.goodput(16384, days=4000, spares=30, repair=86400.0)
    assert beside.simulated > usual.simulated + 0.03
    assert few.lost["waiting for nodes"] > 0.1 > 0.01 > many.lost["waiting for nodes"]
    assert many.simulated == pytest.approx(usual.simulated, abs=0.01)
    assert "88" in repr(usual) and "failures" in repr(usual)


def test_the_hours_between_failures_are_those_of_the_published_run():
    assert f.goodput(16384).seconds_between_failures == pytest.approx(54 * 86400 / 419)


# Saving


def a_state(k=0):
    tensors = {"a": torch.arange(6.0).view(2, 3) + k, "b": [torch.tensor(k), "text"]}
    return {"step": k, "model": tensors, 7: None}


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if torch.is_tensor(a) else a == b


def test_a_state_comes_back_and_the_newest_two_stay(tmp_path):
    for k in range(4):
        f.save(a_state(k), tmp_path / "run")
    assert equal(f.load(tmp_path / "run"), a_state(3))
    assert sorted(os.listdir(tmp_path / "run")) == ["3", "4"]
    names = {"manifest.json", "rank-0-of-1.pt"}
    assert set(os.listdir(tmp_path / "run" / "4")) == names


def test_every_rank_gets_its_own_back(tmp_path):
    def there_and_back(path):
        r = dist.get_rank()
        f.save({"mine": torch.tensor(r)}, path)
        return f.load(path)["mine"].item()

    for ranks, backend in ((3, "sim"), (2, "gloo")):
        path = tmp_path / backend
        found = runs(there_and_back, path, ranks=ranks, backend=backend).results
        assert found == list(range(ranks))
        assert f.load(path)["mine"].item() == 0
        assert [f.load(path, rank=r)["mine"].item() for r in (1, 4)] == [1, 4 % ranks]


@pytest.mark.parametrize("how", ["bytes", "cut", "gone", "manifest"])
def test_a_damaged_checkpoint_is_never_loaded(tmp_path, how):
    for k in range(2):
        f.save(a_state(k), tmp_path)
    path = tmp_path / "2" / ("manifest.json" if how == "manifest" else "rank-0-of-1.pt")
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "bytes":  # one bit
        middle = len(data) // 2
        flipped = bytes([data[middle] ^ 4])
        path.write_bytes(data[:middle] + flipped + data[middle + 1 :])
    else:
        path.write_bytes(data[:-40])
    with pytest.warns(UserWarning, match="damaged"):
        assert equal(f.load(tmp_path), a_state(0))
    shutil.rmtree(tmp_path / "1")
    missing = pytest.raises(FileNotFoundError, match="no complete checkpoint")
    with pytest.warns(UserWarning, match="damaged"), missing:
        f.load(tmp_path)


def test_what_has_no_name_yet_is_no_checkpoint(tmp_path):
    f.save(a_state(), tmp_path)
    os.rename(tmp_path / "1", tmp_path / "1.part-00000001")
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        f.load(tmp_path)
    f.save(a_state(1), tmp_path)  # and it goes with the next one
    assert os.listdir(tmp_path) == ["1"]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    go, fsync = threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: go.wait(WATCHDOG) and fsync(file))
    state = a_state()
    saving_ = f.save(state, tmp_path, wait=False)
    state["model"]["a"] += 100  # the next step
    assert saving.complete(tmp_path) == []
    go.set()
    saving_.wait()
    assert equal(f.load(tmp_path), a_state())


def test_what_goes_wrong_beside_the_training_is_told(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    f.save(a_state(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        f.save(a_state(1), tmp_path, wait=False)
        with pytest.raises(OSError, match="No space"):
            f.save(a_state(2), tmp_path)
    assert equal(f.load(tmp_path), a_state())
    f.save(a_state(3), tmp_path)
    assert equal(f.load(tmp_path), a_state(3))


# Pieces


@pytest.mark.parametrize("fold", [1, 3])
@pytest.mark.parametrize("shape, dim", [((12, 2), 0), ((12, 6), 1), ((12,), 0)])
def test_pieces_of_one_cut_become_pieces_of_another(shape, dim, fold):
    if dim and fold > 1:
        return
    whole = torch.arange(math.prod(shape)).view(shape)
    for ranks in (1, 2):
        parts = [saving.part_of(whole, dim, (r, ranks), fold) for r in range(ranks)]
        pieces = [Piece(x.clone(), shape, dim, (r, ranks), fold)
                  for r, x in enumerate(parts)]  # fmt: skip
        assert torch.equal(saving.join(pieces), whole)
        half = saving.join(pieces, (1, 2))
        assert half.numel() == whole.numel() // 2
        assert torch.equal(half.flatten(), saving.part_of(whole, dim, (1, 2), fold)
                           .flatten())  # fmt: skip


def test_runs_of_numbers_in_any_order():
    whole = torch.arange(12.0).view(3, 4)
    flat = whole.flatten()
    pieces = [Piece(flat[a:b], (3, 4), begin=a) for a, b in ((7, 12), (0, 3), (3, 7))]
    assert torch.equal(saving.join(pieces), whole)
    with pytest.raises(ValueError, match="7 numbers, and the tensor 12"):
        saving.join(pieces[1:])


# A GPT, from mesh to mesh

CONFIG = Config(D=6, depth=2, heads=6, context=4, vocabulary=12, dropout=0.2)
MESHES = [(1, 1, 1, 0), (4, 1, 1, 1), (1, 2, 2, 0), (2, 2, 1, 0), (2, 1, 3, 1)]


def trainer(sizes):
    torch.set_default_dtype(torch.float64)
    *axes, zero = sizes
    mesh = Mesh(*axes)
    model = MeshModel(CONFIG, mesh, zero=zero)
    return mesh, model, torch.optim.Adam(model.shards, lr=1e-2)


def steps(model, optimizer, count):
    found = []
    for _ in range(count):
        tokens = torch.randint(0, 12, (2, 4, 4))
        found.append(float(model.step(*tokens)))
        model.update(optimizer)
    return found


def uninterrupted(sizes, path, more):
    _, model, optimizer = trainer(sizes)
    steps(model, optimizer, 2)
    f.save(run_state(model, optimizer), path)
    return steps(model, optimizer, more)


def continued(sizes, path, more):
    mesh, model, optimizer = trainer(sizes)
    restore(model, optimizer, f.load(path, mesh))
    again = path.with_name("again")
    f.save(run_state(model, optimizer), again, keep=1)
    return steps(model, optimizer, more)


def test_saved_on_each_of_five_meshes_and_loaded_on_each(tmp_path):
    """What is loaded and saved again is the same, bit for bit; so are losses at home.

    On other meshes sums run in a different order.  One test, so that each mesh has to
    train only once.
    """
    for came in MESHES:
        path = tmp_path / str(came) / "run"
        ranks = math.prod(came[:3])
        losses = runs(uninterrupted, came, path, 4, ranks=ranks).results[0]
        before = f.load(path)
        assert len(before["optimizer"]["token.weight"]) == 3
        for goes in MESHES:
            more, ranks = 4 if came == goes else 1, math.prod(goes[:3])
            found = runs(continued, goes, path, more, ranks=ranks).results[0]
            assert found == pytest.approx(losses[:more], abs=1e-12), (came, goes)
            assert came != goes or found == losses
            assert equal(before, f.load(path.with_name("again"))), (came, goes)


def test_the_cuts_are_those_of_the_layers():
    def cuts():
        model = MeshModel(CONFIG, Mesh(tensor=2))
        return {name: dim for name, _, dim in model.entries()}

    found = runs(cuts).results[0]
    assert found == {name: cut_of(name) for name in found}


def test_a_rank_can_load_what_it_needs_alone(tmp_path):
    runs(uninterrupted, MESHES[0], tmp_path, 0, ranks=1)
    only = lambda kind, *names: kind == "model"
    mine = f.load(tmp_path, Mesh(tensor=3), rank=2, only=only)
    assert mine["model"]["token.weight"].shape == (4, 6)
    assert not any(mine["optimizer"].values())


# Kills


def test_kills_at_phases_and_at_any_moment_lose_no_loss(tmp_path):
    figures = soak.soak(tmp_path, 4, seed=3, each=5)
    assert figures["kills"] == 4 and figures["losses that differ"] == 0
    for name in ("half-written checkpoints", "processes", "namespaces", "ports"):
        assert figures[name] == 0, figures


def test_the_phases_that_are_killed_exist():
    for name in soak.PHASES.values():
        *path, last = name.split(".")
        owner = sys.modules.get(".".join(path))
        owner = owner or getattr(sys.modules[".".join(path[:-1])], path[-1])
        assert callable(getattr(owner, last))


@pytest.mark.parametrize("phase", ["bytes", "folder name"])
def test_a_kill_in_a_save_leaves_the_last_one_whole(tmp_path, phase):
    soak.run(tmp_path, 3)
    before = saving.complete(tmp_path / "saved")
    side = "half" if phase == "bytes" else "before"
    failure = soak.run(tmp_path, 9, (1 if phase == "bytes" else 0, phase, side, 1))
    if phase == "bytes":
        assert "SIGKILL" in failure
    newest = saving.complete(tmp_path / "saved")[-1]
    assert newest >= before[-1]
    assert not saving.damage(tmp_path / "saved" / str(newest))


@pytest.mark.night
def test_the_soak_itself_can_be_killed():
    with tempfile.TemporaryDirectory() as place:  # a short path, for sockets
        place = Path(place)
        program = [sys.executable, str(ROOT / "tests" / "soak.py"), "1000"]
        env = os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(ROOT)}
        soaking = subprocess.Popen(program, env=env, stderr=subprocess.PIPE, text=True)
        while not any(map(saving.complete, place.glob("*/saved"))):
            assert soaking.poll() is None, soaking.stderr.read()
            time.sleep(0.02)
        children = psutil.Process(soaking.pid).children(recursive=True)
        soaking.kill()
        soaking.communicate()
        _, alive = psutil.wait_procs(children, timeout=WATCHDOG)
        assert children and not alive
        (path,) = place.glob("*/saved")
        newest = saving.complete(path)[-1]
        assert not saving.damage(path / str(newest))


# Silent errors


def same_but(odd, bit):
    torch.manual_seed(0)
    x = [torch.randn(5), torch.arange(7, dtype=torch.int8), torch.tensor(True)]
    if dist.get_rank() in odd:
        x[0].view(torch.int32)[3] ^= 1 << bit
    return f.odd_ranks(x)


@pytest.mark.parametrize("bit", [0, 13, 30])
def test_one_flipped_bit_is_found(bit):
    assert runs(same_but, [2], bit, ranks=4).results == [[2]] * 4
    assert runs(same_but, [], bit, ranks=3).results == [[]] * 3
    assert runs(same_but, [0], bit, ranks=2).results == [[0, 1]] * 2
    assert runs(same_but, [0], bit, ranks=1).results == [[]]


# Several nodes


@pytest.fixture(scope="module")
def can():
    """Skip where no namespaces may be made."""
    try:
        with f.nodes(2, 1, "1Gb"):
            return True
    except n.NodesUnavailable as error:
        pytest.skip(str(error))


def where():
    with open("/proc/net/dev") as file:
        names = sorted(line.split(":")[0].strip() for line in file)
    x = torch.ones(1000)
    dist.all_reduce(x)
    env = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
    return os.readlink("/proc/self/ns/net"), names, env, x.sum().item()


def test_ranks_are_in_networks_of_their_own(can):
    runs(where, backend="gloo")
    held = lambda: (os.readlink("/proc/self/ns/net"), len(os.listdir("/proc/self/fd")))
    before = held()
    with f.nodes(2, 2, "1Gb") as here:
        assert "2 nodes with 2 ranks each, 1 Gbit/s" in repr(here)
        found = runs(where, ranks=4, backend="gloo").results
        with pytest.raises(ValueError, match="a run here has 4 ranks, not 3"):
            runs(where, ranks=3, backend="gloo")
        with pytest.raises(RuntimeError, match="nodes already"), f.nodes(2, 1, "1Gb"):
            pass
    spaces = [space for space, *_ in found]
    assert spaces[0] == spaces[1] != spaces[2] == spaces[3]
    assert before[0] not in spaces
    assert [env for _, _, env, _ in found] == [("0", "2"), ("1", "2")] * 2
    assert all("eth0" in names and total == 4000 for _, names, _, total in found)
    assert not os.path.isdir("/run/netns") or not os.listdir("/run/netns")
    assert held() == before
    assert runs(where, backend="gloo").results[0][3] == 2000


def shown(here, i):
    said = []
    here.inside(i, lambda: said.append(completed("tc qdisc show dev eth0".split())))
    return said[0].stdout


def test_links_have_their_rate_and_can_change(can):
    with f.nodes(3, 1, 3e8) as here:
        assert all("rate 300Mbit" in shown(here, i) for i in range(3))
        here.set_rate(1, "50Mb")
        assert "rate 50Mbit" in shown(here, 1) and "rate 300Mbit" in shown(here, 2)
        with pytest.raises(ValueError, match="nodes 0 to 2, not 3"):
            here.set_rate(3, "1Gb")


def test_a_node_that_goes_away_is_waited_for_until_the_timeout(can):
    def alone(flag):
        dist.barrier()
        if dist.get_rank() == 0:
            flag.write_text("now")
        while not flag.with_name("gone").exists():
            time.sleep(0.01)
        dist.all_reduce(torch.ones(1))

    with f.nodes(2, 1, "1Gb") as here, tempfile.TemporaryDirectory() as folder:
        flag = Path(folder) / "flag"

        def unplug():
            while not flag.exists():
                time.sleep(0.01)
            here.unplug(1)
            flag.with_name("gone").write_text("")

        thread = threading.Thread(target=unplug)
        thread.start()
        with pytest.raises(RankError, match="no progress|wait"):
            runs(alone, flag, backend="gloo", timeout=2.0)
        thread.join()
        here.plug(1)
        assert runs(where, backend="gloo").results[0][3] == 2000


def test_nothing_is_left_when_the_owner_is_killed(can):
    code = (
        "import os, signal\nfrom d2lpar.failures import nodes\n"
        "with nodes(2, 1, '1Gb') as here:\n"
        "    print(*[os.fstat(fd).st_ino for fd in here.spaces], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = completed([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    made = set(map(int, done.stdout.split()))
    assert len(made) == 2 and not made & set(networks())


def networks():
    """The inodes of all networks in which a process is."""
    for process in psutil.process_iter():
        try:
            yield os.stat(f"/proc/{process.pid}/ns/net").st_ino
        except OSError:
            pass


def test_without_the_right_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr(n.shutil, "which", lambda name: None)
    with pytest.raises(n.NodesUnavailable, match="no command 'ip'"), f.nodes(2, 1, 1e9):
        pass
    monkeypatch.undo()

    def refused(*arguments):
        raise n.NodesUnavailable(f"{n.CANNOT} The kernel says: no")

    monkeypatch.setattr(n, "_system", refused)
    monkeypatch.setattr(n.shutil, "which", lambda name: name)
    with pytest.raises(n.NodesUnavailable, match="Linux and root"), f.nodes(2, 1, 1e9):
        pass
    assert n._here is None


@pytest.mark.parametrize(
    "given", [(1, 2, "1Gb"), (5, 1, "1Gb"), (2, 0, "1Gb"), (2, 1, "fast")]
)
def test_nodes_refuses_what_cannot_be(given):
    with pytest.raises(ValueError), f.nodes(*given):
        pass


@pytest.mark.parametrize("program", several_nodes.PROGRAMS)
def test_the_programs_run_on_simulated_nodes(program):
    here = n.Nodes(2, 2, "1Gb")
    known = n.cluster(here)
    run = runs(several_nodes.PROGRAMS[program], 1, ranks=4, cluster=known)
    assert several_nodes.slowest(run) > 0.03


def test_the_recorded_run_was_predicted():
    found = several_nodes.recorded()
    rows = found["rows"]
    names = {(row["program"], row["rate"]) for row in rows}
    rates = several_nodes.RATES
    assert names == {(p, rate) for p in several_nodes.PROGRAMS for rate in rates}
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        assert row["error"] == pytest.approx(error)
    assert found["machine"]["cores"] >= 1
    errors = sorted(abs(row["error"]) for row in rows)
    assert errors[-1] < 0.15
