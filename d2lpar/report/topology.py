"""Drawings of a cluster: GPUs, their links, network cards, and a run's traffic on them.

Everything is asked of the cluster: `path` names the links that ranks share, such as
`node0.socket1.out`.  Importing this module does not import matplotlib.
"""

import re
from collections import Counter
from types import SimpleNamespace

from .looks import picture_class
from .units import short_bytes, show_bytes, show_seconds

MOST_NODES, MOST_GPUS = 4, 8  # of more, the first ones and the last are drawn
FACES = {"gpu": "#56B4E9", "NVLink": "#009E73", "host": "#D9D9D9"}
FACES |= {"NIC": "#E69F00", "network": "#F0E442"}
TRAFFIC, QUIET = "#D55E00", "#8C8C8C"
FONT, STEP, BAR = 10, 0.66, 0.27  # points; inches between two rows, height of a box
ROOM = 1.2  # inches that a GPU needs, for its bytes to stand beside its lines


def plot_cluster(cluster, run=None):
    """Draw the nodes around their network; returns the figure, with its `.alt`.

    With a `run`, lines are as wide as the bytes that a GPU sent inside its node, or a
    node by one of its network cards.
    """
    plan = _plan(cluster, run)
    upper = -(-len(plan.nodes) // 2) if len(plan.nodes) > 1 else 1
    deep = STEP * (len(plan.rows) - 1) + BAR
    both = len(plan.nodes) > 1
    height = deep * (1 + both) - both * BAR + 0.75
    figure = picture_class()(figsize=(7.2, height), dpi=100)
    ax = figure.add_axes((0.01, 0.01, 0.98, 1 - 0.4 / height))
    ax.set_title(_title(plan), loc="left", size=FONT + 0.5)
    for k, node in enumerate(plan.nodes):
        mine = plan.nodes[:upper] if k < upper else plan.nodes[upper:]
        wide = 7.0 / len(mine)
        left = wide * mine.index(node) + 0.06
        _draw_node(ax, plan, node, left, wide - 0.12, 1 if k < upper else -1)
    if both:
        text = f"network{plan.gap}: {_rate(plan.far, ' per NIC')}"
        _box(ax, 0.06, -BAR / 2, 6.88, FACES["network"], text)
    ax.set(xlim=(0, 7), ylim=(-deep * both - 0.1 * (not both) - BAR / 2, deep))
    ax.axis("off")
    figure.alt = _alt(plan)
    return figure


# ------------------------------------------------------------- what there is to draw


def _plan(cluster, run):
    """What is drawn: nodes, rows from the network outwards, bytes on each link."""
    n = cluster.n or (run.world_size if run else 4)
    if run is not None and run.world_size > n:
        raise ValueError(
            f"The run had {run.world_size} ranks, and {cluster.name} has only {n}."
        )
    nodes = {}
    for rank in range(n):
        nodes.setdefault(cluster.node(rank), []).append(rank)
    shown, ranks = list(nodes), nodes[0]
    if len(shown) > MOST_NODES:
        shown = [*shown[: MOST_NODES - 1], shown[-1]]
    plan = SimpleNamespace(cluster=cluster, run=run, members=nodes, nodes=shown, n=n)
    plan.near = cluster.path(ranks[0], ranks[1]) if len(ranks) > 1 else None
    plan.far = cluster.path(0, nodes[1][0]) if len(nodes) > 1 else None
    plan.switched = cluster.gpu is not None and cluster.gpu.peer_rate is not None
    plan.above = {r: _stations(cluster, r, nodes[cluster.node(r)]) for r in range(n)}
    levels = range(max(map(len, plan.above.values())))
    fabric = ["NVLink"] if plan.switched and plan.near else []
    host = ["host"] if cluster.gpu is not None or not fabric else []
    plan.rows = ["network", "NIC"] if plan.far else []
    plan.rows += [*host, *reversed(levels), *fabric, "gpu"]
    plan.gap = f" of {len(nodes)} nodes, {len(shown)} drawn" * (len(nodes) > len(shown))
    plan.flows = _flows(plan) if run is not None else Counter()
    plan.most = max(plan.flows.values(), default=0)
    return plan


def _stations(cluster, rank, others):
    """Names of what stands between a GPU and the others of its node, nearest first."""
    found = {}
    for other in others:
        for name in cluster.path(rank, other)[2]:
            if not name.endswith(".in"):
                found[name.removesuffix(".out")] = None
    return list(found)


def _flows(plan):
    """{rank or name of a link: bytes}, in the direction that carries more.

    A rank's are those that stay in its node, or all, where a GPU has one line for both.
    """
    cluster, out, into, plan.inside = plan.cluster, Counter(), Counter(), 0
    for src, row in enumerate(plan.run.traffic.tolist()):
        for dst, size in enumerate(row):
            if size and src != dst:
                for name in cluster.path(src, dst)[2]:
                    link = re.sub(r"\.in(\d*)$", r".out\1", name)
                    way = out if link == name else into
                    way[link.removesuffix(".out")] += size
                inside = cluster.node(src) == cluster.node(dst)
                plan.inside += size * inside
                one = inside or not plan.switched
                out[src if one else ("away", src)] += size
                into[dst if one else ("away", dst)] += size
    return out | into


def _cards(plan, node):
    """{name of a way out of the node: its ranks}, one per network card."""
    ways = {}
    away = next(ranks[0] for a, ranks in plan.members.items() if a != node)
    for rank in plan.members[node]:
        names = plan.cluster.path(rank, away)[2]
        name = next(name for name in names if name.startswith(f"node{node}.out"))
        ways.setdefault(name, []).append(rank)
    return ways


# ----------------------------------------------------------------------- the drawing


def _draw_node(ax, plan, node, left, wide, side):
    """One node, upwards from the network or downwards."""
    ranks = plan.members[node]
    if len(ranks) > MOST_GPUS:
        ranks = [*ranks[: MOST_GPUS - 1], ranks[-1]]
    height = {row: side * STEP * k for k, row in enumerate(plan.rows)}
    low, high = height[plan.rows[-1]], height["host" if "host" in height else "NVLink"]
    step = wide / len(ranks)
    across = {rank: left + step * (k + 0.5) for k, rank in enumerate(ranks)}
    near = plan.rows[-2] if len(plan.rows) > 1 else None
    beside = True if step > ROOM else None
    for rank, x in across.items():
        if near == "NVLink" and "host" in height:
            _line(ax, plan, x + 0.07, height[near], high, ("away", rank), beside)
            _line(ax, plan, x + 0.07, low, height[near], ("away", rank), None)
        side = -0.07 if near == "NVLink" else 0
        _line(ax, plan, x + side, low, height[near], rank, beside)
        what = "GPU" if plan.cluster.gpu else "rank"
        text = f"{rank}" if step < 0.72 else f"{what} {rank}"
        size = min(step * 0.8, 0.8)
        _box(ax, x - size / 2, low - BAR / 2, size, FACES["gpu"], text)
    for level in (row for row in plan.rows if isinstance(row, int)):
        _draw_stations(ax, plan, across, level, height)
    for row in ("NVLink", "host"):
        if row in height:
            text = f"node {node}, " * (len(plan.members) > 1 and row == near)
            text += _words(plan, row, wide > 5)
            links = ranks if row == near else [("away", rank) for rank in ranks]
            if not beside:
                text += _each(plan, links)
            _box(ax, left, height[row] - BAR / 2, wide, FACES[row], text)
    if plan.far:
        _draw_cards(ax, plan, node, left, wide, height)


def _draw_stations(ax, plan, across, level, height):
    """Boxes that several GPUs share on their way to the others."""
    groups = {}
    for rank, x in across.items():
        if level < len(plan.above[rank]):
            groups.setdefault(plan.above[rank][level], []).append(x)
    for name, xs in groups.items():
        x, y = sum(xs) / len(xs), height[level]
        _line(ax, plan, x, y, height.get(level + 1, height["host"]), name, True)
        size = max(xs) - min(xs) + 0.5
        words = re.sub(r"(\d+)$", r" \1", name.partition(".")[2])
        _box(ax, x - size / 2, y - BAR / 2, size, FACES["host"], words)


def _draw_cards(ax, plan, node, left, wide, height):
    cards = _cards(plan, node)
    step = wide / len(cards)
    for k, name in enumerate(cards):
        x, number = left + step * (k + 0.5), name.rpartition("out")[2]
        link = name.removesuffix(".out")
        _line(ax, plan, x, height["NIC"], 0, link, step > 0.8)
        _line(ax, plan, x, height["NIC"], height["host"], link, None)
        text = f"NIC {number}".strip() if step > 0.45 else number
        size = min(step * 0.8, 0.9)
        _box(ax, x - size / 2, height["NIC"] - BAR / 2, size, FACES["NIC"], text)


def _box(ax, x, y, wide, face, text):
    from matplotlib.patches import FancyBboxPatch

    style = {"boxstyle": "round,pad=0,rounding_size=0.05", "ec": "#333333", "lw": 0.7}
    ax.add_patch(FancyBboxPatch((x, y), wide, BAR, fc=face, zorder=3, **style))
    ink = "white" if face == FACES["NVLink"] else "black"
    middle = {"ha": "center", "va": "center", "zorder": 4}
    size = min(FONT, 72 * wide / (0.57 * len(text)))  # a letter is half as wide as high
    ax.text(x + wide / 2, y + BAR / 2, text, size=size, color=ink, **middle)


def _line(ax, plan, x, start, stop, link, across):
    """A link; where there is a run, as wide as its bytes, which stand beside it.

    They are written `across` the page or along the link; None: not at all.
    """
    size = plan.flows.get(link, 0)
    width = 1 + 7 * size / plan.most if size else 1
    colour = TRAFFIC if size else QUIET
    style = {"color": colour, "lw": width, "ls": "-", "marker": ""}
    ax.plot([x, x], [start, stop], zorder=2, **style)
    if size and across is not None:
        left = link in plan.above and plan.switched  # beside the other line
        side = {"ha": "right" if left else "left", "va": "center", "zorder": 5}
        side["rotation"] = 0 if across else 90
        place = x + (0.03 + width / 144) * (-1 if left else 1), (start + stop) / 2
        ax.text(*place, short_bytes(size), size=FONT - (0.5 if across else 1.5), **side)


# ------------------------------------------------------------------------- the words


def _rate(path, each=""):
    latency, rate, _ = path
    speed = "no limit" if rate == float("inf") else f"{rate / 1e9:.3g} GB/s"
    return f"{speed} each way{each}, {show_seconds(latency)} per message"


def _words(plan, row, long):
    """What is written on a node's bar: kind of link and rate."""
    cluster = plan.cluster
    if row == "host" and (plan.switched or plan.near is None):
        latency, rate, _ = cluster.host_path(0)
        return f"host, PCIe: {rate / 1e9:.3g} GB/s" + " to each GPU" * long
    kind = row if row == "NVLink" else "PCIe" if cluster.gpu else "links"
    text = _rate(plan.near) if plan.near else ""
    short = text.partition(",")[0].removesuffix(" each way" if plan.flows else "")
    return f"{kind}: {text if long else short}"


def _each(plan, links):
    """What each of these links carries, where the lines have no room for it."""
    sizes = [plan.flows.get(link, 0) for link in links]
    ends = map(short_bytes, sorted({min(sizes), max(sizes)}))
    return f"; {' to '.join(ends)} per GPU" if max(sizes) else ""


def _title(plan):
    name = plan.cluster.name
    if plan.run is None:
        return name
    return f"{name}: bytes that links carry, in their busier direction"


def _alt(plan):
    """The drawing in two or three sentences."""
    nodes, ranks = len(plan.members), len(plan.members[0])
    what = "GPU" if plan.cluster.gpu else "rank"
    text = f"Drawing of {plan.cluster.name}: {nodes} node{'s' * (nodes > 1)} of "
    text += f"{ranks} {what}{'s' * (ranks > 1)}"
    if plan.near:
        kind = "NVLink" if plan.switched else "PCIe" if plan.cluster.gpu else "links"
        text += f", joined by {kind} with {_rate(plan.near)}"
    if plan.far:
        count = len(_cards(plan, 0))
        text += f"; {count} network card{'s' * (count > 1)} in each, {_rate(plan.far)}"
    if plan.run is None:
        return text + "."
    outside = sum(map(sum, plan.run.traffic.tolist())) - plan.inside
    sent = (
        f"{show_bytes(plan.inside)} stay inside nodes, {show_bytes(outside)} leave them"
    )
    return f"{text}. Of the run's traffic {sent}."
