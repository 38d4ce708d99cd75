"""Models with experts, as published: total and active parameters, bytes of a token.

Counts in the letters of `model`: h hidden, f the width of one expert, V words.

    layer          parameters                    of these active for a token
    attention      as in `Model`, or latent      all
    router         h E                           all
    experts        3 h f (E + shared)            3 h f (k + shared)
    dense MLP      3 h (dense width)             all

Sources: the models' config.json and reports, named with each of them below.
"""

from dataclasses import dataclass
from typing import NamedTuple

from .model import Model


class Latent(NamedTuple):
    """Sizes of latent attention: ranks of its products, parts of a head."""

    query: int
    key: int
    plain: int  # of a head of queries and keys, without positions
    rotated: int  # of a head of queries and keys, with positions
    value: int


@dataclass(frozen=True)
class ExpertModel(Model):
    """A gated decoder whose MLPs are experts.

    experts, chosen    E and k
    shared             experts that every token uses
    dense, width       the first layers have an MLP of this width, no experts
    latent             sizes of latent attention; None: `Model`'s attention
    extra              further parameters of a block, such as norms
    table_counts       whether its authors count the token table as active
    """

    experts: int = 1
    chosen: int = 1
    shared: int = 0
    dense: int = 0
    width: int = 0
    latent: Latent | None = None
    extra: int = 0
    table_counts: bool = True

    @property
    def expert(self):
        """Parameters of one expert."""
        return 3 * self.hidden * self.f

    @property
    def attention(self):
        """Parameters of a block's attention, norms included."""
        h, a, rest = self.hidden, self.latent, 2 * self.hidden + self.extra
        if a is None:
            return 2 * h * (self.q + self.kv) + rest
        query = a.query * (h + 1 + self.heads * (a.plain + a.rotated))
        key = h * (a.key + a.rotated) + a.key
        value = self.heads * (a.key * (a.plain + a.value) + a.value * h)
        return query + key + value + rest

    def count(self, experts):
        """Parameters if a token had this many experts, shared ones besides."""
        h, sparse = self.hidden, self.layers - self.dense
        layer = self.expert * (experts + self.shared) + h * self.experts
        blocks = sparse * layer + self.dense * 3 * h * self.width
        return blocks + self.layers * self.attention + 2 * self.table + h

    @property
    def parameters(self):
        """All parameters, to the unit."""
        return self.count(self.experts)

    @property
    def active(self):
        """Parameters that a token uses, as the authors of the model count them."""
        return self.count(self.chosen) - (0 if self.table_counts else self.table)

    @property
    def split(self):
        """Refused: the planner's blocks are dense, and would hold one expert each."""
        raise ValueError(
            f"The planner counts dense models, and this one has {self.experts} experts "
            "in a layer: their messages and their balance are not among its formulas. "
            "Its parameters and bytes_per_token() are known; for times, plan a Model."
        )

    def flops(self, batch, recompute="none", causal=False):
        """Refuse, as `split`."""
        return self.split

    def bytes_per_token(self, copies=None, dispatch=2, combine=2):
        """Bytes that one token sends in one layer, forward: there and back.

        copies               messages of a token; None: one for each expert
        dispatch, combine    bytes of a number on each way
        """
        return self.hidden * (copies or self.chosen) * (dispatch + combine)


def _gated(*sizes, **more):
    """An ExpertModel without biases and positions, whose tables are not tied."""
    usual = {"sequence": 4096, "tied": False, "gated": True, "positions": False}
    names = "layers", "hidden", "heads", "vocabulary", "feed_forward"
    named = dict(zip(names, sizes, strict=True))
    return ExpertModel(**named, **usual, **more)


# Mixtral: Jiang et al. 2024, table 1.  DBRX: config.json of databricks/dbrx-base.
# OLMoE: config.json of allenai/OLMoE-1B-7B-0924, with norms of queries and keys.
# DeepSeek-V3: report 2024, section 4.2, without the module for further tokens.
PUBLISHED = {
    "Mixtral 8x7B": _gated(
        *(32, 4096, 32, 32000, 14336), kv_heads=8, experts=8, chosen=2
    ),
    "DBRX": _gated(*(40, 6144, 48, 100352, 10752), kv_heads=8, experts=16, chosen=4),
    "OLMoE-1B-7B": _gated(
        *(16, 2048, 16, 50304, 1024), experts=64, chosen=8, extra=2 * 2048
    ),
    "DeepSeek-V3": _gated(
        *(61, 7168, 128, 129280, 2048), experts=256, chosen=8, shared=1, dense=3,
        width=18432, latent=Latent(1536, 512, 128, 64, 128), table_counts=False,
    ),
}  # fmt: skip
