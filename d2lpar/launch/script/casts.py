"""What `torch.autocast("cuda")` does, for tensors that torch does not take for a GPU's.

Source: PyTorch's documentation of torch.amp, "CUDA Ops that can autocast to float16"
and "... to float32".
"""

import torch

_LOW = """
    __matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d
    conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d einsum linear
    matmul mm multi_dot mv prelu scaled_dot_product_attention
"""
_FULL = """
    __pow__ __rpow__ acos asin binary_cross_entropy_with_logits cdist
    cosine_embedding_loss cosine_similarity cosh cross_entropy cumprod cumsum dist
    erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log
    log10 log1p log2 log_softmax logsumexp margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss nll_loss norm normalize pow prod
    reciprocal rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum
    tan triplet_margin_loss vector_norm
"""
_WIDTH = dict.fromkeys(_LOW.split(), "low") | dict.fromkeys(_FULL.split(), "full")
_FLOATS = torch.float32, torch.float16, torch.bfloat16


def cast(func, args, kwargs, shapes):
    """(args, kwargs) as autocast gives them to the function `func`."""
    width = _WIDTH.get(getattr(func, "__name__", None))
    if width is None:
        return args, kwargs
    low = width == "low"
    dtype = torch.get_autocast_dtype("cuda") if low else torch.float32

    def one(value):
        if isinstance(value, list | tuple):
            return type(value)(map(one, value))
        plain = isinstance(value, torch.Tensor) and value.is_meta
        if not plain or value.dtype not in _FLOATS or value.dtype == dtype:
            return value
        if not (low and value.is_leaf and value.requires_grad):
            return value.to(dtype)
        if id(value) not in shapes.casts:  # once for each weight
            shapes.casts[id(value)] = value, value.to(dtype)
        return shapes.casts[id(value)][1]

    # from the last argument on, as torch does; gradients come in the other order
    named = {name: one(kwargs[name]) for name in reversed(kwargs)}
    return tuple(map(one, reversed(args)))[::-1], named
