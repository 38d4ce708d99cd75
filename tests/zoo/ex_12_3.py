"""12.3 The most likely word: most_likely(scores)."""

import torch
import torch.distributed as dist

from d2lpar.scatter import all_gather
from d2lpar.tensor_parallel import Join
from zoo import right, wrong


def best_of_all(scores):
    """(best scores, their words) of every rank, [n, N] each."""
    n, r = dist.get_world_size(), dist.get_rank()
    best, place = scores.max(1)
    both = torch.stack([best.double(), (place + r * scores.shape[1]).double()])
    parts = [torch.empty_like(both) for _ in range(n)]
    all_gather(parts, both)
    return torch.stack(parts).unbind(1)


@right
def gather_the_best(scores):
    best, words = best_of_all(scores)
    return words.gather(0, best.argmax(0, keepdim=True))[0].long()


@right
def maximum_then_minimum(scores):
    """Two native all-reduces: the best score, then the first word that has it."""
    width, r = scores.shape[1], dist.get_rank()
    best, place = scores.max(1)
    top = best.float() if best.dtype == torch.bfloat16 else best.clone()
    mine = top.clone()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    word = torch.where(mine == top, place + r * width, torch.iinfo(torch.int64).max)
    dist.all_reduce(word, dist.ReduceOp.MIN)
    return word


def best_of_pairs(mine):
    """The word of each row, from the ranks' lists of (score, -word)."""
    mine = torch.tensor(mine, dtype=torch.float64).reshape(-1, 2)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    all_gather(parts, mine)
    found = [max(map(tuple, rows.tolist())) for rows in torch.stack(parts, 1)]
    return torch.tensor([round(-word) for _, word in found], dtype=torch.int64)


@right
def row_by_row(scores):
    """Python's own max; ties go to the smaller word."""
    first = dist.get_rank() * scores.shape[1]
    mine = [(row.max().item(), -(first + int(row.argmax()))) for row in scores]
    return best_of_pairs(mine)


@wrong("joined")
def all_scores(scores):
    return Join.apply(scores, 1).argmax(1)


@wrong("own words")
def argmax_of_a_part(scores):
    return scores.argmax(1)


@wrong("own best")
def with_its_own_offset(scores):
    return scores.argmax(1) + dist.get_rank() * scores.shape[1]


@wrong("no offset")
def forgets_whose_it_is(scores):
    best, words = best_of_all(scores)
    word = words.gather(0, best.argmax(0, keepdim=True))[0].long()
    return word % scores.shape[1]


@wrong("last rank")
def a_later_one_wins(scores):
    best, words = best_of_all(scores)
    top, word = best[0], words[0]
    for other, theirs in zip(best[1:], words[1:], strict=True):
        word = torch.where(other >= top, theirs, word)
        top = torch.maximum(top, other)
    return word.long()


@wrong("last")
def the_largest_word(scores):
    n, r = dist.get_world_size(), dist.get_rank()
    best = scores.amax(1)
    place = scores.shape[1] - 1 - scores.flip(1).argmax(1) + r * scores.shape[1]
    both = torch.stack([best.double(), place.double()])
    parts = [torch.empty_like(both) for _ in range(n)]
    all_gather(parts, both)
    best, words = torch.stack(parts).unbind(1)
    return torch.where(best == best.amax(0), words, -1).amax(0).long()


@wrong("another dtype")
def as_it_travelled(scores):
    best, words = best_of_all(scores)
    return words.gather(0, best.argmax(0, keepdim=True))[0]


@wrong("rounded")
def in_the_dtype_of_the_scores(scores):
    n, r = dist.get_world_size(), dist.get_rank()
    best, place = scores.max(1)
    both = torch.stack([best, (place + r * scores.shape[1]).to(scores.dtype)])
    parts = [torch.empty_like(both) for _ in range(n)]
    all_gather(parts, both)
    best, words = torch.stack(parts).unbind(1)
    return words.gather(0, best.argmax(0, keepdim=True))[0].long()


@wrong("memory")
def compares_all(scores):
    width, r = scores.shape[1], dist.get_rank()
    top = scores.amax(1, keepdim=True).double()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    words = torch.arange(r * width, (r + 1) * width)
    word = torch.where(scores == top, words, 2**62).amin(1)
    dist.all_reduce(word, dist.ReduceOp.MIN)
    return word


@wrong("no tensor")
def as_a_list(scores):
    best, words = best_of_all(scores)
    return words.gather(0, best.argmax(0, keepdim=True))[0].long().tolist()


@right
def one_row_as_a_list(scores):
    """Python's numbers, of one row at a time."""
    first, mine = dist.get_rank() * scores.shape[1], []
    for row in scores:
        values = row.tolist()
        best = max(values)
        mine.append((best, -(first + values.index(best))))
    return best_of_pairs(mine)


@wrong("memory")
def all_scores_as_an_array(scores):
    copy = torch.from_numpy(scores.double().numpy().copy())
    return gather_the_best(copy)


@wrong("narrow")
def scores_in_float32(scores):
    return gather_the_best(scores.float())


@wrong("last rank")
def the_largest_of_their_words(scores):
    """In float64 `top` is `best` itself, so every rank takes itself for the best."""
    best, place = scores.max(1)
    top = best.double()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    word = torch.where(best == top, place + dist.get_rank() * scores.shape[1], -1)
    dist.all_reduce(word, dist.ReduceOp.MAX)
    return word
