"""RMSNorm as one node of the graph: a third of the passes over memory, the same values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm


class RMSNormFunction(torch.autograd.Function):
    """y = w · x/√(mean x² + ε) over the last dimension, with its gradient written out.

    With n = x/√(mean x² + ε), so y = w·n, and g = w · ∂L/∂y:
    ∂L/∂x = (g − n · mean(g·n)) / √(mean x² + ε) and ∂L/∂w = Σ n · ∂L/∂y.
    Automatic differentiation takes the same steps in a dozen passes, each of which stores a tensor
    (Zhang & Sennrich, 2019, "Root mean square layer normalization", equation 4).
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x (..., D) and weight (D,) to (..., D)."""
        scale = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        normed, scale, weight = ctx.saved_tensors
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * normed).reshape(-1, normed.shape[-1]).sum(dim=0)
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None
        grad_normed = grad * weight
        along = torch.linalg.vecdot(grad_normed, normed).div_(normed.shape[-1]).unsqueeze(-1)
        return grad_normed.addcmul_(normed, along, value=-1).mul_(scale), grad_weight, None


def rms_norm(norm: Olmo2RMSNorm, x: Tensor) -> Tensor:
    """What OLMo-2's module makes of x (..., D), in float32 at least; one operation for its six."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    weight, eps = norm.weight.to(wide.dtype), norm.variance_epsilon
    if not torch.is_grad_enabled():
        return F.rms_norm(wide, weight.shape, weight, eps).to(x.dtype)
    return RMSNormFunction.apply(wide, weight, eps).to(x.dtype)
