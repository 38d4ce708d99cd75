"""Split the tokens of a sequence over ranks, in attention and between the products.

    ring_attention             keys and values go round; any number of ranks
    gather_attention           all keys and values on every rank at once
    ulysses_attention          all-to-all: from T/n tokens of H heads to T tokens of H/n
    torch_ring_attention       PyTorch's own, to compare with
    SequenceParallelBlock      T/n tokens in the norms, heads / n in between

Ulysses, four ranks and four heads: rank r has row r before and column r afterwards.

                     heads 0    1    2    3
        tokens of 0       .    .    .    .      <- rank 0 has all heads of these
        tokens of 1       .    .    .    .
        tokens of 2       .    .    .    .
        tokens of 3       .    .    .    .
                          ^ rank 0 gets this head of all tokens

n ranks, r this rank, N batch, T tokens, H heads of d features, G heads of keys and
values, D features of a token.  Serial truth: the whole sequence on one device.
Jacobs et al. 2023 (DeepSpeed Ulysses); Korthikanti et al. 2022.
"""

from ..sim.torch_private import torch_ring_attention
from .block import SequenceParallelBlock
from .order import join_sequence, positions, split_sequence
from .ring import gather_attention, online_attention, ring_attention
from .ulysses import heads_to_tokens, tokens_to_heads, ulysses_attention
