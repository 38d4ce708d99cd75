"""torch's own ring attention, called below `context_parallel`, which refuses CPUs.

`context_parallel` routes attention through DTensor, and DTensor knows the attention of
GPUs only: "aten._scaled_dot_product_flash_attention_for_cpu.default does not have a
sharding strategy registered".  The ring behind it takes any attention, so it gets the
CPU's here.  Its options are global, so all ranks that are threads share them.
"""

import torch
import torch.distributed as dist


def torch_ring_attention(q, k, v, causal=True, group=None):
    """Attend with torch's ring; zigzag order if causal, else contiguous order.

    q, k, v are [N, H, T/n, d], and 2 n divides T.
    """
    return _Ring.apply(q, k, v, causal, group or dist.group.WORLD)


def _prepared(causal, dtype):
    from torch.distributed.tensor.experimental._context_parallel import _attention

    _attention._cp_options.enable_load_balance = causal
    _attention._cp_options.convert_to_f32 = dtype != torch.float64
    return _attention


def _backward(grad_out, query, key, value, out, logsumexp, is_causal):
    given = grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*given)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, group):
        ring = _prepared(causal, q.dtype)._templated_ring_attention
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, lse = ring(group, 2, kernel, q, k, v, causal)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how = causal, group
        return out

    @staticmethod
    def backward(ctx, dy):
        q, k, v, out, lse = ctx.saved_tensors
        causal, group = ctx.how
        ring = _prepared(causal, q.dtype)._templated_ring_attention_backward
        dy = dy.contiguous()
        given = dy, "grad_out", q, k, v, out, lse, causal
        return *ring(group, 2, _backward, *given), None, None
