"""Where the seconds of a step go: products, memory, messages, bubble, optimizer.

A block and the tables are lists of operations, forward and backward.  Each costs the
longer of two times, of its FLOPs and of its bytes (the roofline of chapter 01).

    part           what it is
    products       matrix products of blocks and tables
    attention      products of scores and everything between them
    elementwise    norms, residuals, functions, the loss, sums of gradients
    recompute      all of this again, as far as the plan says
    tensor         sums over the tensor axis          context   keys and values

Counted truth: events of a simulated run of chapter 15's model.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from ..sim.hardware import PROCESSORS
from .links import allreduce, gather, links
from .memory import tokens

# A product is cut into tiles, a multiprocessor works on one at a time, and a last round
# that is not full costs as much as a full one (NVIDIA, Matrix Multiplication Background
# User's Guide, sections 4 and 5).
TILES = ((256, 128), (128, 256), (128, 128))
# Part of the peak that fused attention reaches: 50 to 73 % on A100, 335 of 989 TFLOP/s
# on H100 (Dao 2023, FlashAttention-2, abstract and section 4.1).
FLASH = {"A100": 0.61, "H100": 0.34, "H200": 0.34}
NEWER = ("H100", "H200", "B200")  # than fused attention, which is from 2022


class Kernels(NamedTuple):
    """Bytes that the operations between products move: (forward, backward).

    norm, add      per number of a norm, and of a residual sum
    heads          per unit of the queries: rows of heads are put in order
    function       per unit of the MLP; gated: with a product
    scores         per score, besides what its two products move
    words          per score of a word, both ways together
    accumulate     per weight and micro-batch: a gradient is added to the others
    update         per weight and step: Adam in float32, clipping
    tiles          whether products are cut into tiles
    scatter        whether tensor ranks share a message to the next stage
    """

    norm: tuple = (4, 10)
    add: tuple = (6, 6)
    heads: tuple = (0, 0)
    function: tuple = (4, 8)
    gated: tuple = (6, 10)
    scores: tuple = (4, 6)
    words: float = 52
    accumulate: float = 6
    update: float = 32
    tiles: bool = True
    scatter: bool = True


# Counted from the operations of Megatron-LM, which fuses bias and function, and bias,
# dropout and sum, and scale, mask and softmax (Narayanan et al. 2021, section 4.2).
FUSED = Kernels()
DROPOUT = FUSED._replace(add=(7, 13), scores=(9, 11))


def plain(t=1):
    """Return the Kernels of chapter 15's model on t tensor ranks.

    Each operation of `torch` reads and writes on its own.  Tensor ranks add
    their biases apart, copy what they sum up, and add what arrives: all of it
    between two ranks, else in chunks.
    """
    apart = t > 1
    sums = apart * (4 + 6 * (1 if t == 2 else (t - 1) / t))  # two ranks swap
    return Kernels(
        norm=(4, 6), add=(6 + 4 * apart + sums, 8 + sums), heads=(4 + 12 * apart, 30),
        function=(4 + 4 * apart, 8), scores=(12, 14), words=40 if apart else 16,
        update=38, tiles=False, scatter=False,
    )  # fmt: skip


@dataclass(frozen=True)
class Shares:
    """What parts of its best rates a run keeps up.

    reached    {GPU: part of the best measured products, and of the bandwidth}
    usual      the same for a GPU that is not there
    kernels    what runs between the products; None: as the model needs
    """

    reached: dict = field(default_factory=dict)
    usual: float = 1.0
    kernels: Kernels | None = None

    def of(self, gpu):
        """Return the part for this GPU."""
        return next((x for name, x in self.reached.items() if gpu == name), self.usual)


class Both(NamedTuple):
    """Seconds forward and backward."""

    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other):
        return Both(self.forward + other.forward, self.backward + other.backward)


class Speed:
    """How long this model's operations take on a GPU of this cluster."""

    def __init__(self, cluster, shares, model):
        gpu = cluster.gpu
        if gpu is None:
            text = f"The cluster {cluster.name} has no GPUs, so it cannot compute."
            raise ValueError(f"{text} Use one such as Cluster.of('4x8xA100').")
        self.name = gpu.short.split("-")[0]
        part = shares.of(self.name)
        self.peak = cluster.peak("bfloat16") * part
        self.best = gpu.half
        self.memory = gpu.memory_rate * part
        self.kernels = shares.kernels or (DROPOUT if model.biased else FUSED)
        self.processors = PROCESSORS.get(self.name) if self.kernels.tiles else None

    def product(self, M, N, K, count=1):
        """Return the seconds of `count` products [M, K] x [K, N]."""
        rate = self.peak * tile_share(M, N, count, self.processors)
        moved = 2 * (M * K + K * N + M * N)
        return count * max(2 * M * N * K / rate, moved / self.memory)

    def weights(self, M, N, K):
        """Return Both times of a layer: forward; gradients of input and weight."""
        back = self.product(M, K, N) + self.product(K, N, M)
        return Both(self.product(M, N, K), back)

    def move(self, kernel, numbers):
        """Return Both times of an operation that moves bytes per number."""
        return Both(*(each * numbers / self.memory for each in kernel))

    def flash(self, flops):
        """Return Both times of fused attention, with 2.5 times the FLOPs backward."""
        rate = self.best * FLASH.get(self.name, min(FLASH.values()))
        return Both(flops / rate, 2.5 * flops / rate)


@functools.lru_cache(maxsize=4096)
def tile_share(M, N, count, processors):
    """Return the part of a GPU's tiles that do useful work, for the best tile."""
    if processors is None:
        return 1.0
    best = 0.0
    for height, width in TILES:
        tiles = math.ceil(M / height) * math.ceil(N / width) * count
        size = height * width
        # a multiprocessor holds one large tile, or two that are half as large
        waves = math.ceil(tiles * size / (32768 * processors))
        best = max(best, M * N * count / (waves * processors * 32768))
    return best


def block(model, plan, cluster, speed, flash):
    """Return {part: Both} of a block and a micro-batch."""
    M, t, k = tokens(model, plan), plan.tensor, speed.kernels
    h, q, kv, f = model.hidden, model.q, model.kv, model.f
    up = 2 * f if model.gated else f
    made = [(M, (q + 2 * kv) // t, h), (M, h, q // t), (M, up // t, h), (M, h, f // t)]
    products = sum((speed.weights(*sizes) for sizes in made), Both())
    wide = M * h / (t if plan.sequence_parallel else 1)
    norms = 1 if model.parallel else 2
    between = speed.move(k.norm, norms * wide) + speed.move(k.add, 2 * wide)
    between += speed.move(k.gated if model.gated else k.function, M * f / t)
    between += speed.move(k.heads, M * q / t)
    group = links(cluster, t)
    each = norms * allreduce(group, 2 * M * h)
    return {
        "products": products,
        "attention": attention(model, plan, speed, flash),
        "elementwise": between,
        "tensor": Both(each, each),
        "context": context(model, plan, cluster),
    }


def attention(model, plan, speed, flash):
    """Return Both times of the scores of a block, for all heads of a rank."""
    b, s, size = plan.micro_batch, model.sequence, model.q // model.heads
    rows, heads = s // plan.context, b * model.heads // plan.tensor
    if flash:  # which leaves out the scores above the diagonal
        return speed.flash(2 * heads * rows * s * size)
    one, other = (rows, s, size, heads), (rows, size, s, heads)
    there = speed.product(*one) + speed.product(*other)
    back = 2 * speed.product(*one) + 2 * speed.product(*other)
    return Both(there, back) + speed.move(speed.kernels.scores, heads * rows * s)


def context(model, plan, cluster):
    """Return Both times of gathering keys and values, and of adding gradients."""
    group = links(cluster, plan.context, plan.tensor)
    rows = plan.micro_batch * model.sequence
    each = gather(group, 2 * rows * 2 * model.kv / plan.tensor)
    return Both(each, 2 * each)


def first(model, plan, cluster, speed):
    """Return {part: Both} of the token table, looked up."""
    M, table = tokens(model, plan), model.table / plan.tensor
    forward = speed.move((4, 6), M * model.hidden)
    sums = allreduce(links(cluster, plan.tensor), 2 * M * model.hidden)
    written = Both(0.0, 2 * table / speed.memory)
    return {"elementwise": forward + written, "tensor": Both(sums, 0.0)}


def last(model, plan, cluster, speed):
    """Return {part: Both} of the last norm, the scores of all words, and the loss."""
    M, words = tokens(model, plan), model.vocabulary / plan.tensor
    made = speed.weights(M, math.ceil(words), model.hidden)
    moved = speed.kernels.words * M * words / speed.memory
    norm = speed.move(speed.kernels.norm, M * model.hidden)
    sums = allreduce(links(cluster, plan.tensor), 2 * M * model.hidden)
    between = norm + Both(moved / 2, moved / 2)
    return {"products": made, "elementwise": between, "tensor": Both(0.0, sums)}


def again(parts, recompute, flash):
    """Return the seconds of running a block forward again before its backward."""
    if recompute == "full":
        return sum(part.forward for part in parts.values())
    if recompute == "selective" and not flash:
        return parts["attention"].forward
    return 0.0
