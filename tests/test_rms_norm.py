"""RMSNorm in one node against the module it stands for."""

from __future__ import annotations

import pytest
import torch
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from gsmrl_helpers.rms_norm import RMSNormFunction, rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_it_is_the_module(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    norm = Olmo2RMSNorm(8, 1e-6).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = (scale * torch.randn(5, 2, 8)).to(dtype).requires_grad_()
    weights = torch.randn(5, 2, 8)
    found = [
        (y, *torch.autograd.grad((weights * y).sum(), [x, norm.weight]))
        for y in (rms_norm(norm, x), norm(x))
    ]
    torch.testing.assert_close(found[0], found[1])
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(norm, x), norm(x))


@pytest.mark.parametrize("frozen", [None, "x", "weight"])
def test_the_gradient_is_the_slope(frozen: str | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=frozen != "x")
    weight = torch.randn(4, dtype=torch.float64, requires_grad=frozen != "weight")
    assert torch.autograd.gradcheck(
        lambda *inputs: RMSNormFunction.apply(*inputs, 0.1), (x, weight)
    )
