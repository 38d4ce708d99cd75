"""08.1 Half the bytes: average_on_wire(grads, wire, bucket_bytes, allreduce)."""

import torch
import torch.distributed as dist

from zoo import right, wrong


def fill(grads, wire, bucket_bytes, sizes=None):
    """Buckets from the end, full from `bucket_bytes` on."""
    buckets, full = [], True
    for g in reversed([g for g in grads if g is not None]):
        if full:
            buckets.append([])
        buckets[-1].append(g)
        item = (lambda x: wire.itemsize) if sizes is None else sizes
        full = sum(x.numel() * item(x) for x in buckets[-1]) >= bucket_bytes
    return buckets


def carry(bucket, wire, allreduce, before=True, after=False):
    n = dist.get_world_size()
    flat = torch.cat([(g / n if before else g).to(wire).reshape(-1) for g in bucket])
    allreduce(flat)
    if after:
        flat /= n
    for g, piece in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
        g.copy_(piece.view(g.shape))


@right
def bucket_by_bucket(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads, wire, bucket_bytes):
        carry(bucket, wire, allreduce)


@right
def one_buffer_that_is_cut(grads, wire, bucket_bytes, allreduce):
    """All on the wire's dtype first; buckets are slices of one long tensor."""
    there = [g for g in grads[::-1] if g is not None]
    n = dist.get_world_size()
    every = torch.empty(sum(g.numel() for g in there), dtype=wire)
    start = end = 0
    for g in there:
        every[end : end + g.numel()] = g.flatten() * (1 / n)
        end += g.numel()
        if (end - start) * wire.itemsize >= bucket_bytes or g is there[-1]:
            allreduce(every[start:end])
            start = end
    end = 0
    for g in there:
        g[...] = every[end : end + g.numel()].reshape(g.shape)
        end += g.numel()


@right
def with_the_librarys_plan(grads, wire, bucket_bytes, allreduce):
    from d2lpar.overlap import plan_buckets

    there = [g for g in grads if g is not None]
    copies = [(g.double() / dist.get_world_size()).to(wire) for g in there]
    home = {id(copy): g for copy, g in zip(copies, there, strict=True)}
    for bucket in plan_buckets(copies, bucket_bytes):
        flat = torch.cat([copy.view(-1) for copy in bucket])
        allreduce(flat, None)
        pieces = flat.split([copy.numel() for copy in bucket])
        for copy, piece in zip(bucket, pieces, strict=True):
            home[id(copy)].view(-1).copy_(piece)


@wrong("none")
def forgets_none(grads, wire, bucket_bytes, allreduce):
    n = dist.get_world_size()
    for g in grads[::-1]:
        x = (g / n).to(wire)
        allreduce(x)
        g.copy_(x)


@wrong("left alone")
def rebinds(grads, wire, bucket_bytes, allreduce):
    n = dist.get_world_size()
    for bucket in fill(grads, wire, bucket_bytes):
        flat = torch.cat([(g / n).to(wire).reshape(-1) for g in bucket])
        allreduce(flat)
        pieces = flat.split([g.numel() for g in bucket])
        for g, piece in zip(bucket, pieces, strict=True):
            g = piece.view(g.shape).to(g.dtype)


@wrong("infinite")
def divides_last(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads, wire, bucket_bytes):
        carry(bucket, wire, allreduce, before=False, after=True)


@wrong("sum")
def never_divides(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads, wire, bucket_bytes):
        flat = torch.cat([g.double().reshape(-1) for g in bucket])
        allreduce(flat)
        pieces = flat.split([g.numel() for g in bucket])
        for g, piece in zip(bucket, pieces, strict=True):
            g.copy_(piece.view(g.shape))


@wrong("dtype")
def keeps_the_wires_dtype(grads, wire, bucket_bytes, allreduce):
    n = dist.get_world_size()
    for bucket in fill(grads, wire, bucket_bytes):
        flat = torch.cat([(g / n).to(wire).reshape(-1) for g in bucket])
        allreduce(flat)
        pieces = flat.split([g.numel() for g in bucket])
        for g, piece in zip(bucket, pieces, strict=True):
            i = next(i for i, x in enumerate(grads) if x is g)
            grads[i] = piece.view(g.shape).clone()


@wrong("from the front")
def from_the_first_on(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads[::-1], wire, bucket_bytes):
        carry(bucket, wire, allreduce)


@wrong("own bytes")
def counts_its_own_bytes(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads, wire, bucket_bytes, lambda g: g.element_size()):
        carry(bucket, wire, allreduce)


@wrong("not filled")
def closes_before_it_is_full(grads, wire, bucket_bytes, allreduce):
    bucket, size = [], 0
    for g in [g for g in grads if g is not None][::-1]:
        if bucket and size + g.numel() * wire.itemsize > bucket_bytes:
            carry(bucket, wire, allreduce)
            bucket, size = [], 0
        bucket.append(g)
        size += g.numel() * wire.itemsize
    carry(bucket, wire, allreduce)


@wrong("one by one")
def each_alone(grads, wire, bucket_bytes, allreduce):
    for g in grads:
        if g is not None:
            carry([g], wire, allreduce)


@wrong("all at once")
def one_piece(grads, wire, bucket_bytes, allreduce):
    carry([g for g in grads[::-1] if g is not None], wire, allreduce)


@wrong("wide")
def as_wide_as_float64(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads, wire, bucket_bytes):
        carry(bucket, torch.float64, allreduce)


@wrong("native collective")
def torchs_own(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads, wire, bucket_bytes):
        carry(bucket, wire, dist.all_reduce)


@wrong("pattern")
def only_this_rank(grads, wire, bucket_bytes, allreduce):
    for g in grads:
        if g is not None:
            g /= dist.get_world_size()


@wrong("its result")
def takes_what_allreduce_returns(grads, wire, bucket_bytes, allreduce):
    n = dist.get_world_size()
    for bucket in fill(grads, wire, bucket_bytes):
        flat = torch.cat([(g / n).to(wire).reshape(-1) for g in bucket])
        pieces = allreduce(flat).split([g.numel() for g in bucket])
        for g, piece in zip(bucket, pieces, strict=True):
            g.copy_(piece.view(g.shape))


@wrong("overfull")
def wants_more_than_full(grads, wire, bucket_bytes, allreduce):
    for bucket in fill(grads, wire, bucket_bytes + 1):
        carry(bucket, wire, allreduce)


@wrong("infinite")
def rounds_before_it_divides(grads, wire, bucket_bytes, allreduce):
    n = dist.get_world_size()
    for bucket in fill(grads, wire, bucket_bytes):
        flat = torch.cat([g.to(wire).reshape(-1) / n for g in bucket])
        allreduce(flat)
        pieces = flat.split([g.numel() for g in bucket])
        for g, piece in zip(bucket, pieces, strict=True):
            g.copy_(piece.view(g.shape))


@wrong("new tensors")
def puts_new_tensors_into_the_list(grads, wire, bucket_bytes, allreduce):
    copies = [g if g is None else g.clone() for g in grads]
    bucket_by_bucket(copies, wire, bucket_bytes, allreduce)
    grads[:] = copies
