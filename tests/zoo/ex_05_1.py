"""05.1 Deal a batch like cards: deal(x, root, rows, features)."""

import torch
import torch.distributed as dist

from zoo import right, wrong


def counts(rows, n):
    return [len(range(r, rows, n)) for r in range(n)]


@right
def in_turn(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            share = x[peer::n].contiguous()
            if peer != root and len(share):
                dist.send(share, peer)
        return x[root::n].clone()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if len(mine):
        dist.recv(mine, root)
    return mine


@right
def all_at_once_last_rank_first(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r != root:
        mine = torch.zeros((max(0, -(-(rows - r) // n)), features)).double()
        if mine.shape[0] > 0:
            dist.irecv(mine, src=root).wait()
        return mine
    shares = [torch.stack(list(x[p::n])) if p < rows else x[:0] for p in range(n)]
    works = [
        dist.isend(shares[p], p) for p in reversed(range(n)) if p != r and p < rows
    ]
    for work in works:
        work.wait()
    return shares[r]


@right
def a_list_of_rows_and_one_batch_of_messages(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    hands = [list(range(peer, rows, n)) for peer in range(n)]
    mine = torch.empty((len(hands[r]), features), dtype=torch.float64)
    calls = []
    if r == root:
        for peer, hand in enumerate(hands):
            if peer == root:
                mine = x[hand]
            elif hand:
                calls.append(dist.P2POp(dist.isend, x[hand], peer))
    elif hands[r]:
        calls.append(dist.P2POp(dist.irecv, mine, root))
    if calls:
        for work in dist.batch_isend_irecv(calls):
            work.wait()
    return mine


@wrong("no wait")
def nobody_waits(x, root, rows, features):
    """The receivers wait, so it is right; but a program that goes on loses messages."""
    n, r = dist.get_world_size(), dist.get_rank()
    sizes = counts(rows, n)
    if r == root:
        for peer in range(n):
            if peer != root and sizes[peer]:
                dist.isend(x[peer::n].contiguous(), peer)
        return x[root::n].clone()
    mine = torch.empty(sizes[r], features, dtype=torch.float64)
    if sizes[r]:
        dist.recv(mine, root)
    return mine


@wrong("blocks")
def chunks_of_neighbours(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    sizes = [len(part) for part in torch.arange(rows).tensor_split(n)]
    if r == root:
        shares = x.tensor_split(n)
        for peer in range(n):
            if peer != root and sizes[peer]:
                dist.send(shares[peer].contiguous(), peer)
        return shares[root].clone()
    mine = torch.empty(sizes[r], features, dtype=torch.float64)
    if sizes[r]:
        dist.recv(mine, root)
    return mine


@wrong("rowless")
def torch_chunk(x, root, rows, features):
    """5 rows over 4 ranks are 3 chunks: the last rank waits for ever."""
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        order = torch.tensor(sorted(range(rows), key=lambda i: i % n))
        shares = list(x[order.long()].chunk(n))
        for peer, share in enumerate(shares):
            if peer != root:
                dist.send(share.contiguous(), peer)
        return shares[root] if root < len(shares) else x[:0]
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    dist.recv(mine, root)
    return mine


@wrong("rowless")
def waits_for_no_row(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            share = x[peer::n].contiguous()
            if peer != root and len(share):
                dist.send(share, peer)
        return x[root::n].clone()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    dist.recv(mine, root)
    return mine


@wrong("whole batch")
def broadcast_and_slice(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    whole = torch.empty(rows, features, dtype=torch.float64) if r != root else x
    if r == root:
        for peer in range(n):
            if peer != root and rows:
                dist.send(whole.contiguous(), peer)
    elif rows:
        dist.recv(whole, root)
    return whole[r::n].clone()


@wrong("strided")
def a_view_with_gaps(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            if peer != root and len(x[peer::n]):
                dist.send(x[peer::n], peer)
        return x[root::n].clone()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if len(mine):
        dist.recv(mine, root)
    return mine


@wrong("root")
def only_from_rank_0(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == 0:
        for peer in range(1, n):
            share = x[peer::n].contiguous()
            if len(share):
                dist.send(share, peer)
        return x[0::n].clone()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if len(mine):
        dist.recv(mine, 0)
    return mine


@wrong("nothing returned")
def the_root_keeps_nothing(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            share = x[peer::n].contiguous()
            if peer != root and len(share):
                dist.send(share, peer)
        return None
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if len(mine):
        dist.recv(mine, root)
    return mine


@wrong("native collective")
def torch_scatter(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    most = -(-rows // n) if rows else 0
    padded = torch.zeros(most * n, features, dtype=torch.float64)
    if r == root:
        padded[:rows] = x
    mine = torch.zeros(most, features, dtype=torch.float64)
    shares = [padded[p::n].contiguous() for p in range(n)] if r == root else None
    dist.scatter(mine, shares, src=root)
    return mine[: counts(rows, n)[r]]


@wrong("to itself")
def the_root_is_a_rank_like_others(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    works = []
    if r == root:
        shares = [x[peer::n].contiguous() for peer in range(n)]
        works = [dist.isend(share, p) for p, share in enumerate(shares) if len(share)]
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if len(mine):
        dist.recv(mine, root)
    for work in works:
        work.wait()
    return mine


@wrong("dtype")
def forgets_the_dtype(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            share = x[peer::n].contiguous()
            if peer != root and len(share):
                dist.send(share, peer)
        return x[root::n].clone()
    mine = torch.empty(counts(rows, n)[r], features)
    if len(mine):
        dist.recv(mine, root)
    return mine


@wrong("root")
def receives_from_rank_0(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            share = x[peer::n].contiguous()
            if peer != root and len(share):
                dist.send(share, peer)
        return x[root::n].clone()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if len(mine) and r != 0:
        dist.recv(mine, 0)
    return mine


@wrong("row by row")
def card_by_card(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    for i in range(rows):
        if r == root == i % n:
            mine[i // n] = x[i]
        elif r == root:
            dist.send(x[i], i % n)
        elif r == i % n:
            dist.recv(mine[i // n], root)
    return mine


@wrong("empty messages")
def sends_nothing_to_the_rowless(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            if peer != root:
                dist.send(x[peer::n].contiguous(), peer)
        return x[root::n].clone()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    dist.recv(mine, root)
    return mine


@wrong("no tensor")
def a_list_of_rows(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == root:
        for peer in range(n):
            share = x[peer::n].contiguous()
            if peer != root and len(share):
                dist.send(share, peer)
        return list(x[root::n])
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if len(mine):
        dist.recv(mine, root)
    return list(mine)


def dealt(x, root, rows, features, first=0, empty=torch.float64):
    """The deal begins at rank `first`, and a rank without rows has that dtype."""
    n, r = dist.get_world_size(), dist.get_rank()
    hands = [list(range((peer - first) % n, rows, n)) for peer in range(n)]
    if r == root:
        for peer in set(range(n)) - {root}:
            if hands[peer]:
                dist.send(x[hands[peer]], peer)
        mine = x[hands[r]]
    else:
        mine = torch.empty(len(hands[r]), features, dtype=torch.float64)
        if hands[r]:
            dist.recv(mine, root)
    return mine if hands[r] else mine.to(empty)


@wrong("root first")
def deals_to_itself_first(x, root, rows, features):
    return dealt(x, root, rows, features, first=root)


@wrong("empty dtype")
def empty_hands_in_single_precision(x, root, rows, features):
    return dealt(x, root, rows, features, empty=torch.float32)


@wrong("batch changed")
def piles_up_in_place(x, root, rows, features):
    """The first rank's rows are put on top, so that its hand is a slice."""
    n = dist.get_world_size()
    mine = dealt(x, root, rows, features)
    if x is not None:
        x.copy_(torch.cat([x[peer::n] for peer in range(n)]))
    return mine


@wrong("wrong")
def a_constant(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    return torch.zeros(counts(rows, n)[r], features, dtype=torch.float64)


@wrong("no batch")
def every_rank_cuts_the_batch(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    shares = [x[peer::n].contiguous() for peer in range(n)]
    if r == root:
        for peer in range(n):
            if peer != root and len(shares[peer]):
                dist.send(shares[peer], peer)
        return shares[root]
    mine = torch.empty_like(shares[r])
    if len(mine):
        dist.recv(mine, root)
    return mine


@wrong("hangs")
def everybody_receives_first(x, root, rows, features):
    """The root, too, so all wait: with rows or without."""
    n, r = dist.get_world_size(), dist.get_rank()
    mine = torch.empty(counts(rows, n)[r], features, dtype=torch.float64)
    if n > 1:
        dist.recv(mine, (root + 1) % n if r == root else root)
    return mine


@wrong("error")
def always_three_features(x, root, rows, features):
    """A rank without the batch takes its rows to have three columns."""
    return in_turn(x, root, rows, 3)
