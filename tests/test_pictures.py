"""Pictures: clusters and moves are their data, the README's comes from its script."""

import base64
import importlib.util
import re
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from PIL import Image

import d2lpar
import d2lpar.allreduce as a
from conftest import ROOT, completed
from d2lpar.messages import exchange
from d2lpar.report.moves import moves_of
from d2lpar.report.topology import plot_cluster
from d2lpar.report.units import short_bytes
from d2lpar.shared import notebooks

README, GUIDE = ((ROOT / f"{x}.md").read_text("utf-8") for x in ("README", "GUIDE"))
COMMITTED = ROOT / "pictures" / "gather_ring.png"
MOVING = COMMITTED.with_suffix(".gif")
RECORDED = re.search(
    r"^TORCH .= torch==([\d.]+)$", (ROOT / "Makefile").read_text(), re.M
)[1]
SIMULATED = ROOT / "pictures" / "train.png"


def script():
    spec = importlib.util.spec_from_file_location("cover", COMMITTED.with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_the_one_that_its_script_draws(tmp_path):
    script().draw(tmp_path / "new.png")
    old, new = (Image.open(path) for path in (COMMITTED, tmp_path / "new.png"))
    assert old.text["Description"] == new.text["Description"]
    assert COMMITTED.stat().st_size < 150_000
    if old.text["Software"] == new.text["Software"]:  # the same matplotlib
        pngs = COMMITTED.read_bytes(), (tmp_path / "new.png").read_bytes()
        assert notebooks.same_picture(*map(base64.b64encode, pngs))


def frames(path):
    """(pixels, milliseconds) of every frame of a GIF."""
    with Image.open(path) as image:
        for number in range(image.n_frames):
            image.seek(number)
            yield image.convert("RGB").tobytes(), image.info["duration"]


def test_the_moving_picture_is_the_one_that_its_script_draws(tmp_path):
    cover = script()
    cover.animate(tmp_path / "new.gif")
    with Image.open(MOVING) as old, Image.open(tmp_path / "new.gif") as new:
        assert (old.n_frames, old.info["loop"]) == (new.n_frames, new.info["loop"])
        same = old.info["comment"] == new.info["comment"]  # matplotlib and Pillow
    if same:
        assert list(frames(MOVING)) == list(frames(tmp_path / "new.gif"))


def test_the_moving_picture_is_small_stops_and_ends_complete():
    assert MOVING.stat().st_size < 1_000_000
    *_, before, (last, shown) = every = list(frames(MOVING))
    assert len(every) <= 100 and sum(ms for _, ms in every) < 10_000
    assert before[0] != last and shown >= 2000
    paper = [pixels.count(b"\xff\xff\xff") for pixels, _ in every]
    assert len(set(paper[::10])) > 5  # it moves
    with Image.open(MOVING) as image:
        assert image.info["loop"] == 2  # begins again twice: three rounds
        assert image.width <= 600  # a phone halves it, and letters have 20 pixels


def test_readme_and_guide_show_them_with_the_times_of_the_runs():
    gather, ring = script().runs().values()
    for text, picture in ((README, MOVING), (GUIDE, COMMITTED)):
        alt, path = re.search(r"!\[([^\]]+)\]\((pictures/[^)]+)\)", text).groups()
        assert ROOT / path == picture
        for run in (gather, ring):
            assert f"{run.elapsed * 1e6:.0f} us" in alt
    assert gather.results[0][0] == ring.results[3][-1] == 1.5


@pytest.mark.night
def test_the_command_of_the_readme_draws_its_picture(tmp_path):
    [command] = re.findall(r"^\.venv/bin/d2lpar (simulate .*)$", README, re.M)
    *words, script = command.split()
    words[words.index("train.png")] = str(tmp_path / "train.png")
    words = [sys.executable, "-m", "d2lpar", *words, ROOT / script]
    done = completed(words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    alt = re.search(r"!\[([^\]]+)\]\(pictures/train.png\)", README)[1]
    if torch.__version__.startswith(RECORDED):  # others charge other operations
        took = re.search(r"(\S+ ms) virtual", done.stdout)[1]
        assert f"over {took}" in alt
        old, new = (Image.open(path) for path in (SIMULATED, tmp_path / "train.png"))
        if old.text["Software"] == new.text["Software"]:
            pngs = SIMULATED.read_bytes(), (tmp_path / "train.png").read_bytes()
            assert notebooks.same_picture(*map(base64.b64encode, pngs))
    assert SIMULATED.stat().st_size < 150_000


# clusters


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


@pytest.mark.parametrize(
    ("spec", "boxes"),
    [("1xA100", 1), ("8xA100", 8), ("4xT4", 4), ("2x4xV100", 8), ("4x8xH100", 32)],
)
def test_a_cluster_draws_every_gpu_with_the_rates_of_its_links(spec, boxes):
    cluster = d2lpar.Cluster.of(spec, "400Gb")
    figure = cluster.plot()
    found = texts(figure)
    ranks = [text for text in found if re.fullmatch(r"(GPU )?\d+", text)]
    assert len(ranks) == boxes
    if cluster.n > 1:
        rate = f"{cluster.path(0, 1)[1] / 1e9:.3g} GB/s"
        assert any(rate in text for text in found) and rate in figure.alt
    if cluster.node(cluster.n - 1):
        far = f"{cluster.path(0, cluster.n - 1)[1] / 1e9:.3g} GB/s"
        assert any(text.startswith("network:") and far in text for text in found)
        assert far in figure.alt


def test_many_nodes_are_summed_up_and_that_is_said():
    figure = d2lpar.Cluster.of("16x8xH100", "400Gb", cards=8).plot()
    found = texts(figure)
    assert sum(text.startswith("node ") for text in found) == 4
    assert any("16 nodes, 4 drawn" in text for text in found)
    assert "127" in found and "16 nodes of 8 GPUs" in figure.alt
    assert "8 network cards in each" in figure.alt


def test_a_cluster_without_gpus_has_ranks():
    figure = d2lpar.Cluster.plain.plot()
    assert texts(figure)[:4] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert "4 ranks, joined by links with 10 GB/s each way" in figure.alt


class Boxes(SimpleNamespace):
    """Two sockets with two GPUs each; what goes from one to the other is shared."""

    name, n, gpu = "boxes", 4, SimpleNamespace(peer_rate=None)

    def node(self, rank):
        return 0

    def path(self, src, dst):
        a, b = src // 2, dst // 2
        shared = (f"node0.socket{a}.out", f"node0.socket{b}.in") if a != b else ()
        return 5e-6, 16e9, shared


def test_links_that_ranks_share_are_boxes_with_their_own_traffic():
    cluster = Boxes()
    found = texts(plot_cluster(cluster))
    assert {"socket 0", "socket 1"} <= set(found)
    run = d2lpar.run(shift, world_size=4, backend="sim")
    drawn = texts(plot_cluster(cluster, run))
    assert drawn.count("4 MB") == 4 + 2  # each GPU, and both ways between sockets


def shift():
    n, r = dist.get_world_size(), dist.get_rank()
    x, y = torch.ones(1_000_000), torch.empty(1_000_000)
    exchange(x, (r + 1) % n, y, (r - 1) % n)


def test_traffic_is_that_of_the_run():
    run = d2lpar.run(shift, cluster="2x2xA100", world_size=4, backend="sim")
    figure = run.plot_traffic()
    found = texts(figure)
    # in each node one rank sends by NVLink, and one by the host and the network card;
    # the other one receives there
    assert found.count("4 MB") == 4 + 4 + 2
    assert "8 MB stay inside nodes, 8 MB leave them" in figure.alt
    cards = d2lpar.Cluster.of("2x2xT4").plot(run)  # here each GPU has one line
    assert "8 MB stay inside nodes, 8 MB leave them" in cards.alt
    assert texts(cards).count("4 MB") >= 4 + 2
    wide = {round(line.get_linewidth(), 3) for line in figure.axes[0].lines}
    assert wide == {8}
    with pytest.raises(ValueError, match="has only 2"):
        d2lpar.Cluster.of("2xA100").plot(run)


def to_the_other_node():
    x = torch.ones(1_000_000)
    dist.send(x, 2) if dist.get_rank() == 0 else None
    dist.recv(x, 0) if dist.get_rank() == 2 else None


def test_what_only_arrives_is_drawn_too():
    run = d2lpar.run(to_the_other_node, cluster="2x2xT4", world_size=4, backend="sim")
    figure = run.plot_traffic()
    assert texts(figure).count("4 MB") == 2 + 2  # of both ranks and both cards
    wide = [round(line.get_linewidth(), 3) for line in figure.axes[0].lines]
    assert {*wide} == {1, 8} and wide.count(8) == 2 + 4  # a card has two ends


def test_eight_gpus_in_half_a_picture_have_their_bytes_on_the_bars():
    run = d2lpar.run(shift, cluster="4x8xA100", world_size=32, backend="sim")
    figure = run.plot_traffic()
    bars = [text for text in texts(figure) if "per GPU" in text]
    assert sum(text.endswith("; 4 MB per GPU") for text in bars) == 4  # NVLink
    assert sum(text.endswith("; 0 B to 4 MB per GPU") for text in bars) == 4
    figure.canvas.draw()
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, text.get_text()


def test_traffic_of_a_real_run_needs_a_cluster():
    run = d2lpar.run(shift, world_size=2, backend="gloo")
    with pytest.raises(ValueError, match=r"run in gloo used is not known.*plot\(run\)"):
        run.plot_traffic()
    assert texts(d2lpar.Cluster.of("2xA100").plot(run)).count("4 MB") == 2


# moves


def summed(allreduce, groups=None):
    group = a.node_groups(groups) if groups else None
    allreduce(torch.ones(1000), group)


def test_the_rounds_of_a_picture_are_those_of_the_run():
    ways = a.ring_allreduce, a.naive_allreduce, a.recursive_doubling_allreduce
    for way, rounds in zip(ways, (6, 6, 2), strict=True):
        run = d2lpar.run(summed, way, world_size=4, backend="sim")
        moves = moves_of(run.timeline)
        assert max(move.row for move in moves) + 1 == run.rounds == rounds
        assert len(moves) == sum(run.messages)


def test_the_butterfly_exchanges_all_with_partners_twice_as_far():
    way = a.recursive_doubling_allreduce
    run = d2lpar.run(summed, way, world_size=8, backend="sim")
    for move in moves_of(run.timeline):
        src, dst = move.ranks
        assert src ^ dst == 2**move.row
    figure = run.plot_moves()
    assert texts(figure).count("all") == 24
    assert figure.axes[0].get_xlabel() == "all: the whole tensor"
    assert figure.alt.startswith("Moves of 8 ranks, 3 rounds. Round 1: 0 to 1, 1 to 0")


def test_chunks_and_nodes_of_the_hierarchical_allreduce():
    where = {"cluster": "2x2xA100", "world_size": 4, "backend": "sim"}
    run = d2lpar.run(summed, a.hierarchical_allreduce, 2, **where)
    figure = run.plot_moves("three phases")
    labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert labels[2] == "rank 2\nnode 1"
    assert figure.axes[0].get_title(loc="left") == "three phases"
    assert set(texts(figure)) == {"0-1", "2-3", "0", "1", "2", "3"}
    assert figure.alt.count("(another node)") == 8
    notes = "numbers: chunks of the tensor, 0 to 3; dashed: to another node"
    assert figure.axes[0].get_xlabel() == notes
    (head,) = figure.texts
    assert head.get_text() == "round, bytes"
    drawn = [text.arrow_patch for text in figure.axes[0].texts if not text.get_text()]
    assert [arrow.get_linestyle() for arrow in drawn].count("--") == 8


def test_collectives_are_bars_and_labels_boxes():
    def step():
        with d2lpar.label("F0"):
            d2lpar.sleep(1e-3)
        dist.all_reduce(torch.ones(1000))

    run = d2lpar.run(step, world_size=3, backend="sim")
    moves = moves_of(run.timeline)
    assert [(m.row, m.kind, len(m.ranks)) for m in moves] == [
        *[(0, "compute", 1)] * 3, (1, "collective", 3)
    ]  # fmt: skip
    figure = run.plot_moves()
    assert texts(figure) == ["F0"] * 3 + ["all_reduce, 4 kB"]
    assert figure.axes[0].get_xlabel() == ""


def test_what_overlaps_in_time_does_not_overlap_in_the_picture():
    def step():
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        with d2lpar.label("B0"):
            d2lpar.sleep(1e-3)
        work.wait()
        send = dist.isend(torch.ones(1000), (dist.get_rank() + 1) % 2)
        with d2lpar.label("F0"):
            d2lpar.sleep(1e-3)
        dist.recv(torch.empty(1000), (dist.get_rank() + 1) % 2)
        send.wait()

    moves = moves_of(d2lpar.run(step, world_size=2, backend="sim").timeline)
    places = {}
    for move in moves:
        for rank in move.ranks:
            places.setdefault((rank, move.row), set()).add(move.kind)
    assert all(len(kinds) == 1 for kinds in places.values())
    assert [m.row for m in moves if m.kind == "collective"] == [1]
    assert [m.row for m in moves if m.kind == "sending"] == [3, 3]


def test_too_much_for_a_picture_of_moves_is_a_sentence():
    run = d2lpar.run(shift, world_size=17, backend="sim")
    with pytest.raises(ValueError, match="up to 16 ranks.*here are 17 ranks"):
        run.plot_moves()


def test_short_numbers_of_bytes():
    sizes = [0, 999, 1000, 749_999, 999_950, 24_580_000, 3e12]
    shown = ["0 B", "999 B", "1 kB", "750 kB", "1 MB", "24.6 MB", "3e+03 GB"]
    assert [short_bytes(size) for size in sizes] == shown
