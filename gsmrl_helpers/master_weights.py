"""The optimizer of a run: AdamW or its 8-bit form, on the weights or on float32 copies of them.

A step of AdamW moves a weight by about the learning rate. bfloat16 has 8 significant bits: above
.0039 its numbers are 3e-5 apart and more, so that a step of 1e-5 rounds to nothing, every time.
A float32 copy, the master, keeps what the steps add up to; the bf16 weight is its rounded image
(Micikevicius et al., 2018, "Mixed precision training", section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.extras import import_extra


class MasterWeights:
    """An optimizer that steps on float32 copies of the parameters and rounds them into these.

    Args:
        parameters: floating-point parameters, such as bf16 weights.
        make_optimizer: given the masters, makes the optimizer that steps on them.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    @torch.no_grad()
    def step(self) -> None:
        """Step on the masters of all parameters that have a gradient, and round them.

        One after the other, so that only one gradient at a time exists in float32, too: an
        optimizer leaves parameters without a gradient alone.
        """
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                self.optimizer.step()
                master.grad = None
                parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """The masters and the optimizer's state."""
        masters: list[Tensor] = [master.detach() for master in self.masters]
        return {"masters": masters, "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what `state_dict` returned."""
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])


def make_optimizer(
    config: RunConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer | MasterWeights:
    """The run's optimizer over the trainable ones of these parameters.

    Raises:
        ValueError: optimizer=adamw_8bit without bitsandbytes; the message names the extra.
    """
    parameters = [p for p in parameters if p.requires_grad]
    if config.master_weights:
        return MasterWeights(parameters, lambda masters: make_adamw(config, masters))
    return make_adamw(config, parameters)


def make_adamw(config: RunConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2019), or the same with moments of 8 bits (Dettmers et al.,
    2022)."""
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.adam_betas,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adamw_8bit":
        bitsandbytes = import_extra("bitsandbytes", "optimizer=adamw_8bit")
        return bitsandbytes.optim.AdamW8bit(parameters, **settings)
    if parameters[0].is_cuda:
        # By default it would go over all parameters at once there, with copies as large as they.
        settings["fused"] = True
    return torch.optim.AdamW(parameters, **settings)
