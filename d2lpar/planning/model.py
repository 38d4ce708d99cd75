"""Describe a GPT-like model and a plan for it: parameters, FLOPs, and what fits.

Letters of the literature, as in Narayanan et al. 2021: b rows of a micro-batch, s
tokens in a row, h hidden, a heads, V words, t tensor, p pipeline, v interleave.

    block        parameters                   FLOPs of a row, forward
    queries      h q, q = a * head size       2 s h q
    keys, values 2 h kv                       4 s h kv
    scores       none                         4 s s q
    out          q h                          2 s q h
    MLP          2 h f, gated 3 h f           4 s h f, gated 6 s h f

Counted truth: a model of `torch.nn` on the device meta, and PyTorch's FLOP counter.
"""

from dataclasses import dataclass, fields

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Model:
    """A decoder in the shape of GPT, Llama, MPT or PaLM.

    tied          the token table also makes the scores
    kv_heads      heads of keys and values; None: as many as heads
    feed_forward  width of the MLP; None: 4 hidden
    gated         three matrices in an MLP instead of two (SwiGLU)
    positions     a learned table of positions
    head_size     None: hidden / heads
    bias          biases in layers and norms; None: unless gated
    parallel      attention and MLP side by side, behind a single norm (PaLM)
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    tied: bool = True
    kv_heads: int | None = None
    feed_forward: int | None = None
    gated: bool = False
    positions: bool = True
    head_size: int | None = None
    bias: bool | None = None
    parallel: bool = False

    def __post_init__(self):
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence"):
            _count(name, getattr(self, name))
        for name in ("kv_heads", "feed_forward", "head_size"):
            if getattr(self, name) is not None:
                _count(name, getattr(self, name))
        if self.head_size is None and self.hidden % self.heads:
            text = f"{self.heads} heads cannot share {self.hidden} hidden units evenly."
            raise ValueError(f"{text} Name the size of a head: head_size=...")
        if self.heads % (self.kv_heads or self.heads):
            text = f"{self.heads} heads cannot share {self.kv_heads} heads of keys"
            raise ValueError(f"{text} and values evenly: kv_heads must divide heads.")

    @property
    def q(self):
        """Width of all queries together."""
        return self.heads * (self.head_size or self.hidden // self.heads)

    @property
    def kv(self):
        """Width of all keys together, and of all values."""
        return self.q // self.heads * (self.kv_heads or self.heads)

    @property
    def f(self):
        """Width of the MLP."""
        return self.feed_forward or 4 * self.hidden

    @property
    def biased(self):
        """Whether layers and norms have biases."""
        return not self.gated if self.bias is None else self.bias

    @property
    def split(self):
        """Weights and biases of a block that tensor ranks share."""
        h, ways = self.hidden, 2 if self.gated else 1
        weights = 2 * h * (self.q + self.kv) + (ways + 1) * h * self.f
        return weights + self.biased * (self.q + 2 * self.kv + ways * self.f)

    @property
    def whole(self):
        """Parameters of a block that every tensor rank has: norms, last biases."""
        norms = 1 if self.parallel else 2
        return self.hidden * (norms + self.biased * (norms + 2))

    @property
    def table(self):
        """Parameters of the token table."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self):
        """All parameters, to the unit."""
        tables = self.table * (1 if self.tied else 2)
        tables += self.positions * self.sequence * self.hidden
        norm = self.hidden * (2 if self.biased else 1)
        return self.layers * (self.split + self.whole) + tables + norm

    def flops(self, batch, recompute="none", causal=False):
        """Return the FLOPs of one step, forward and backward, of `batch` rows.

        Products only, a multiplication and an addition each one FLOP.  With
        causal=True the scores above the diagonal do not count.  `recompute`
        adds what runs again: "full" all blocks, "selective" the scores.
        Narayanan et al. 2021, appendix; Korthikanti et al. 2022, appendix A.
        """
        one_of("recompute", recompute, RECOMPUTE)
        scores = self.layers * self.scores(causal)
        dense = self.layers * 2 * self.sequence * self.weights
        again = {"none": 0, "selective": scores, "full": scores + dense}[recompute]
        head = 2 * self.sequence * self.table
        return batch * (3 * (scores + dense + head) + again)

    @property
    def weights(self):
        """Weights of a block that its products use, without biases and norms."""
        ways = 3 if self.gated else 2
        return 2 * self.hidden * (self.q + self.kv) + ways * self.hidden * self.f

    def scores(self, causal=False):
        """FLOPs of a block's attention scores, forward, for one row."""
        return (2 if causal else 4) * self.sequence**2 * self.q


@dataclass(frozen=True)
class Plan:
    """How the ranks share a step, and what they save.

    data, tensor, pipeline, context    ranks along each axis; context cuts sequences
    micro_batch          rows that pass through the pipeline together
    interleave           stages on each pipeline rank
    zero                 0 to 3: optimizer, gradients, weights in shards of data ranks
    sequence_parallel    norms and residuals cut along the sequence, over tensor ranks
    recompute            "none", "selective" (the scores) or "full" (all blocks)
    flash                scores are never written to memory; None: where the GPU is
                         newer than that method, as with an H100
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    interleave: int = 1
    context: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    recompute: str = "none"
    flash: bool | None = None

    def __post_init__(self):
        for field in fields(self)[:6]:
            _count(field.name, getattr(self, field.name))
        one_of("zero", self.zero, (0, 1, 2, 3))
        one_of("recompute", self.recompute, RECOMPUTE)

    @property
    def ranks(self):
        """The product of the degrees: data x tensor x pipeline x context."""
        return self.data * self.tensor * self.pipeline * self.context

    def micro_batches(self, batch):
        """Return how many micro-batches a data rank runs in a step."""
        return batch // (self.data * self.micro_batch)

    def check(self, model, ranks, batch):
        """Raise ValueError, with the reason, unless the plan can be run."""
        if self.ranks != ranks:
            degrees = ("data", "tensor", "pipeline", "context")
            product = " x ".join(f"{name} {getattr(self, name)}" for name in degrees)
            text = f"{product} are {self.ranks} ranks, but there are {ranks} GPUs."
            raise ValueError(f"{text} The product of the degrees must be their number.")
        text = self.obstacle(model, batch)
        if text:
            raise ValueError(text)

    def obstacle(self, model, batch):
        """Return why this model and batch cannot be divided so, or None."""
        return next(self._obstacles(model, batch), None)

    def _obstacles(self, model, batch):
        """Yield a sentence for each thing that cannot be divided."""
        t, p, rows = self.tensor, self.pipeline, self.data * self.micro_batch
        shared = [("heads", model.heads), ("units of the MLP", model.f)]
        for what, count in shared:
            if count % t:
                yield f"{t} tensor ranks cannot share {count} {what} evenly."
        kv = model.kv_heads or model.heads
        if kv % t and t % kv:
            yield f"{t} tensor ranks cannot share {kv} heads of keys evenly."
        stages, places = p * self.interleave, model.layers + 2
        if stages > (model.layers if self.interleave == 1 else places):
            text = f"{p} pipeline ranks with {self.interleave} stages each need"
            yield f"{text} {stages} layers, but the model has {model.layers}."
        if self.interleave > 1 and p == 1:
            yield "interleave needs more than one pipeline rank."
        if batch % rows:
            text = f"{self.data} data ranks with micro-batches of {self.micro_batch}"
            yield f"{text} take {rows} rows at a time, which do not divide {batch}."
        cut = self.context * (t if self.sequence_parallel else 1)
        if model.sequence % cut:
            yield f"{model.sequence} tokens cannot be cut into {cut} equal parts."


def mfu(model, tokens_per_second, ranks, peak, causal=False):
    """Return the model FLOPs utilisation: useful FLOPs over possible ones.

    tokens_per_second    of all ranks together
    peak                 FLOP per second of one GPU, from its data sheet

    Recomputed FLOPs do not count.  Chowdhery et al. 2022, appendix B.
    """
    per_token = model.flops(1, causal=causal) / model.sequence
    return tokens_per_second * per_token / (ranks * peak)


BUS = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1.0}
BUS |= {"reduce": BUS["broadcast"]}
BUS |= dict.fromkeys(
    ("reduce_scatter", "all_gather", "all_to_all"), lambda n: (n - 1) / n
)


def bus_bandwidth(collective, nbytes, seconds, n):
    """Return the bus bandwidth of a collective of n ranks, bytes per second.

    nbytes are those of the whole tensor, also of a gathered one.  Algorithm
    bandwidth is nbytes / seconds; the bus bandwidth compares it with a link.
    nccl-tests, doc/PERFORMANCE.md.
    """
    kind = collective.replace("-", "_").replace("allreduce", "all_reduce")
    one_of("collective", kind, tuple(BUS))
    return nbytes / seconds * BUS[kind](n)


def _count(name, value):
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        text = f"{name} must be a whole number of at least 1"
        raise ValueError(f"{text}, not {value!r}.")


def one_of(name, value, known):
    """Raise ValueError unless the value is a known one."""
    if value not in known:
        text = ", ".join(repr(one) for one in known)
        raise ValueError(f"{name} must be one of {text}, not {value!r}.")
