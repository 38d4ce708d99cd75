"""06.1 The ring, mirrored: mirrored_ring(tensor, op)."""

import torch
import torch.distributed as dist

from d2lpar.messages import exchange
from zoo import right, wrong


def combine(mine, incoming, op):
    if op == "sum":
        mine += incoming
    else:
        torch.maximum(mine, incoming, out=mine)


def place():
    return dist.get_world_size(), dist.get_rank()


@right
def empty_chunks_stay_at_home(tensor, op):
    """Borders by hand, isend and irecv, the receive first, no empty message."""
    n, r = place()
    q, longer = divmod(tensor.numel(), n)
    starts = [i * q + min(i, longer) for i in range(n + 1)]
    spare = tensor.new_empty(q + 1 if longer else q)
    for k in range(2 * (n - 1)):
        first = k < n - 1
        i = (r + 1 + k if first else r + k - (n - 1)) % n
        j = (i + 1) % n
        mine = tensor[starts[i] : starts[i + 1]]
        theirs = tensor[starts[j] : starts[j + 1]]
        incoming = spare[: theirs.numel()] if first else theirs
        works = []
        if theirs.numel() > 0:
            works.append(dist.irecv(incoming, src=(r + 1) % n))
        if mine.numel() > 0:
            works.append(dist.isend(mine, dst=(r - 1) % n))
        for work in works:
            work.wait()
        if first:
            combine(theirs, incoming, op)


@right
def the_chapters_ring_in_a_mirror(tensor, op):
    """Ranks and chunks are numbered from the other side; one loop over both ways."""
    n, r = place()
    chunks = list(tensor.tensor_split(n))[::-1]  # chunk i is the mirror's n-1-i
    v = n - 1 - r
    right_of_mirror, left_of_mirror = n - 1 - (v + 1) % n, n - 1 - (v - 1) % n
    spare = torch.empty(max(map(len, chunks)), dtype=tensor.dtype)
    for k in range(n - 1):
        give, take = chunks[(v - k - 1) % n], chunks[(v - k - 2) % n]
        exchange(give, right_of_mirror, spare[: len(take)], left_of_mirror)
        combine(take, spare[: len(take)], op)
    for k in range(n - 1):
        give, take = chunks[(v - k) % n], chunks[(v - k - 1) % n]
        exchange(give, right_of_mirror, take, left_of_mirror)


@wrong("whole tensor")
def whole_tensor_round(tensor, op):
    n, r = place()
    travelling = tensor.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(tensor)
        exchange(travelling, (r - 1) % n, incoming, (r + 1) % n)
        combine(tensor, incoming, op)
        travelling = incoming


@wrong("hub")
def gather_and_broadcast(tensor, op):
    """D2L's, presented as a ring: 2(n-1) rounds, but not of chunks."""
    n, r = place()
    if r == 0:
        incoming = torch.empty_like(tensor)
        for peer in range(n - 1, 0, -1):
            dist.recv(incoming, peer)
            combine(tensor, incoming, op)
        for peer in range(n - 1, 0, -1):
            dist.send(tensor, peer)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


@wrong("direction")
def as_in_the_chapter(tensor, op):
    n, r = place()
    chunks = tensor.tensor_split(n)
    spare = torch.empty_like(chunks[0])
    for k in range(n - 1):
        mine, theirs = chunks[(r - k - 1) % n], chunks[(r - k - 2) % n]
        incoming = spare[: len(theirs)]
        exchange(mine, (r + 1) % n, incoming, (r - 1) % n)
        combine(theirs, incoming, op)
    for k in range(n - 1):
        mine, theirs = chunks[(r - k) % n], chunks[(r - k - 1) % n]
        exchange(mine, (r + 1) % n, theirs, (r - 1) % n)


@wrong("unchanged")
def returns_another_tensor(tensor, op):
    n, r = place()
    tensor = tensor.clone()
    chunks = tensor.tensor_split(n)
    for k in range(n - 1):
        theirs = chunks[(r + 2 + k) % n]
        incoming = torch.empty_like(theirs)
        exchange(chunks[(r + 1 + k) % n], (r - 1) % n, incoming, (r + 1) % n)
        combine(theirs, incoming, op)
    for k in range(n - 1):
        exchange(chunks[(r + k) % n], (r - 1) % n, chunks[(r + 1 + k) % n], (r + 1) % n)
    return tensor


@wrong("unchanged")
def rebinds_the_chunks(tensor, op):
    n, r = place()
    chunks = list(tensor.tensor_split(n))
    for k in range(n - 1):
        j = (r + 2 + k) % n
        incoming = torch.empty_like(chunks[j])
        exchange(chunks[(r + 1 + k) % n], (r - 1) % n, incoming, (r + 1) % n)
        if op == "sum":
            chunks[j] = chunks[j] + incoming
        else:
            chunks[j] = torch.maximum(chunks[j], incoming)
    for k in range(n - 1):
        j = (r + 1 + k) % n
        incoming = torch.empty_like(chunks[j])
        exchange(chunks[(r + k) % n], (r - 1) % n, incoming, (r + 1) % n)
        chunks[j] = incoming
    tensor = torch.cat(chunks)


def ring_of(chunks, op, second=None, owner=0):
    """The mirrored ring, with another second half, or another owner of a chunk."""
    n, r = place()
    r_left, r_right, r = (r - 1) % n, (r + 1) % n, r + owner
    spare = torch.empty_like(max(chunks, key=len))
    for k in range(n - 1):
        theirs = chunks[(r + 2 + k) % n]
        incoming = spare[: len(theirs)]
        exchange(chunks[(r + 1 + k) % n], r_left, incoming, r_right)
        combine(theirs, incoming, op)
    for k in range(n - 1):
        theirs = chunks[(r + 1 + k) % n]
        incoming = spare[: len(theirs)] if second else theirs
        exchange(chunks[(r + k) % n], r_left, incoming, r_right)
        if second:
            second(theirs, incoming, op)


@wrong("tail")
def size_by_floor_division(tensor, op):
    n, _ = place()
    size = len(tensor) // n
    ring_of([tensor[i * size : (i + 1) * size] for i in range(n)], op)


@wrong("too few chunks")
def torch_chunk(tensor, op):
    n, _ = place()
    ring_of(tensor.chunk(n), op)


@wrong("combined twice")
def combines_all_the_way(tensor, op):
    n, _ = place()
    ring_of(tensor.tensor_split(n), op, second=combine)


@wrong("bits")
def adds_the_difference(tensor, op):
    """mine + (sum - mine) is the sum, but for rounding."""

    def nearer(mine, incoming, op):
        incoming -= mine
        mine += incoming

    n, _ = place()
    ring_of(tensor.tensor_split(n), op, second=nearer)


@wrong("whole tensor")
def gathers_all_terms_and_adds_in_order_of_arrival(tensor, op):
    """Other bits on each rank, and all bytes of the direct way."""
    n, r = place()
    terms = [tensor.clone()]
    for _ in range(n - 1):
        incoming = torch.empty_like(tensor)
        exchange(terms[-1], (r - 1) % n, incoming, (r + 1) % n)
        terms.append(incoming)
    for term in terms[1:]:
        combine(tensor, term, op)


@wrong("owner")
def next_chunk_complete(tensor, op):
    n, _ = place()
    ring_of(tensor.tensor_split(n), op, owner=1)


@wrong("owner")
def longer_chunks_last(tensor, op):
    n, _ = place()
    sizes = [(len(tensor) + i) // n for i in range(n)]
    ring_of(tensor.split(sizes), op)


@wrong("op")
def always_adds(tensor, op):
    n, _ = place()
    ring_of(tensor.tensor_split(n), "sum")


@wrong("second half")
def sends_the_wrong_chunk_on(tensor, op):
    n, r = place()
    chunks = tensor.tensor_split(n)
    spare = torch.empty_like(chunks[0])
    for k in range(n - 1):
        theirs = chunks[(r + 2 + k) % n]
        incoming = spare[: len(theirs)]
        exchange(chunks[(r + 1 + k) % n], (r - 1) % n, incoming, (r + 1) % n)
        combine(theirs, incoming, op)


@wrong("spare")
def a_new_buffer_in_each_step(tensor, op):
    n, r = place()
    chunks = tensor.tensor_split(n)
    for k in range(n - 1):
        theirs = chunks[(r + 2 + k) % n]
        incoming = torch.empty_like(theirs)
        exchange(chunks[(r + 1 + k) % n], (r - 1) % n, incoming, (r + 1) % n)
        combine(theirs, incoming, op)
    for k in range(n - 1):
        theirs = chunks[(r + 1 + k) % n]
        exchange(chunks[(r + k) % n], (r - 1) % n, theirs, (r + 1) % n)


@wrong("rounds")
def even_ranks_then_odd_ranks(tensor, op):
    n, r = place()
    chunks = tensor.tensor_split(n)
    spare = torch.empty_like(chunks[0])
    for k in range(2 * (n - 1)):
        i = (r + 1 + k if k < n - 1 else r + k - (n - 1)) % n
        theirs = chunks[(i + 1) % n]
        incoming = spare[: len(theirs)] if k < n - 1 else theirs
        if r % 2 == 0:
            dist.send(chunks[i], (r - 1) % n)
            dist.recv(incoming, (r + 1) % n)
        else:
            dist.recv(incoming, (r + 1) % n)
            dist.send(chunks[i], (r - 1) % n)
        if k < n - 1:
            combine(theirs, incoming, op)


@wrong("hangs")
def all_send_first(tensor, op):
    n, r = place()
    chunks = tensor.tensor_split(n)
    for k in range(n - 1):
        theirs = chunks[(r + 2 + k) % n]
        incoming = torch.empty_like(theirs)
        dist.send(chunks[(r + 1 + k) % n], (r - 1) % n)
        dist.recv(incoming, (r + 1) % n)
        combine(theirs, incoming, op)


@wrong("native collective")
def torchs_own(tensor, op):
    dist.all_reduce(tensor, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)


@wrong("spare")
def a_maximum_in_passing(tensor, op="sum"):
    """torch.maximum makes a new chunk beside the spare one, and
    copy_ brings it back; the sum is made in place."""
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.tensor_split(n)
    spare = torch.empty_like(chunks[0])
    for k in range(n - 1):
        mine, theirs = chunks[(r + k + 1) % n], chunks[(r + k + 2) % n]
        come = spare[: len(theirs)]
        exchange(mine, (r - 1) % n, come, (r + 1) % n)
        if op == "sum":
            theirs += come
        else:
            theirs.copy_(torch.maximum(theirs, come))
    for k in range(n - 1):
        mine, theirs = chunks[(r + k) % n], chunks[(r + k + 1) % n]
        exchange(mine, (r - 1) % n, theirs, (r + 1) % n)


@wrong("spare")
def on_a_copy_of_numpy(tensor, op):
    """A copy of everything, where torch counts nothing."""
    copy = torch.from_numpy(tensor.numpy().copy())
    ring_of(copy.tensor_split(dist.get_world_size()), op)
    tensor.copy_(copy)


@wrong("spare")
def one_rank_hides_a_list(tensor, op):
    """Only rank 2 keeps what it had, as a list of Python's numbers."""
    before = tensor.tolist() if dist.get_rank() == 2 else []
    ring_of(tensor.tensor_split(dist.get_world_size()), op)
    del before


@wrong("raises")
def indices_not_taken_modulo_n(tensor, op):
    """An IndexError wherever there are several ranks: no matter of torch.chunk."""
    n, r = place()
    chunks = tensor.tensor_split(n)
    for k in range(n - 1):
        incoming = torch.empty_like(chunks[r + 2 + k])
        exchange(chunks[r + 1 + k], (r - 1) % n, incoming, (r + 1) % n)
        combine(chunks[r + 2 + k], incoming, op)
