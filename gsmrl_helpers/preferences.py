"""Preferences between two answers: the models of choice, their loss, and pairs to train on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gsmrl_helpers.options import require_number, require_positive_integer
from gsmrl_helpers.rollouts import Rollouts


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Mean of -log σ(chosen - rejected): what a pair's scores say of the choice that was made.

    P(A is chosen over B) = σ(r_A - r_B) (Bradley and Terry, 1952; Ouyang et al., 2022, equation 1).
    It is binary cross-entropy with the label 1 on the difference, and computed as softly: finite
    and with a finite gradient for any finite scores.

    Args:
        chosen: scores of the chosen answers, any shape with at least one element, floating point.
        rejected: scores of the rejected ones, same shape.

    Returns:
        A scalar in nats, with gradient.

    Raises:
        ValueError: unequal shapes, which would be broadcast to pairs that nobody compared, or none.
    """
    if chosen.shape != rejected.shape or chosen.numel() == 0:
        raise ValueError(
            f"chosen {tuple(chosen.shape)} and rejected {tuple(rejected.shape)} must be of one "
            "shape, with at least one pair"
        )
    return -F.logsigmoid(chosen - rejected).mean()


def thurstone_preference(margin: Tensor, sigma: float = 1.0) -> Tensor:
    """P(A is chosen over B) if each score has normal noise of standard deviation sigma of its own.

    Φ(margin / (σ√2)), since the difference of two such noises has the deviation σ√2 (Thurstone,
    1927, case V).

    Args:
        margin: r_A - r_B, any shape, floating point.
        sigma: above 0.

    Raises:
        ValueError: a sigma that is not above 0.
    """
    require_number("sigma", sigma, 0, above=True)
    return torch.special.ndtr(margin / (sigma * 2**0.5))


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one prompt, and which of them was chosen.

    Attributes:
        prompt: the text that both answer.
        chosen, rejected: the better answer's text, and the other's.
        source: where the pair comes from, such as a file's name; "" where nobody asks.
    """

    prompt: str
    chosen: str
    rejected: str
    source: str = ""


def verifier_pairs(
    rollouts: Rollouts,
    *,
    per_prompt: int,
    seed: int,
    may_be_rejected: Callable[[str], bool] = bool,
) -> list[PreferencePair]:
    """Right answers, chosen over wrong ones to the same prompt, as the verifier labels them.

    Args:
        rollouts: graded groups; a group that is all right or all wrong gives no pair.
        per_prompt: at most so many pairs a group, drawn without replacement from all that differ.
        seed: of that draw.
        may_be_rejected: which wrong answers count, by their text; empty ones don't by default.

    Returns:
        The pairs, those of a prompt side by side, in the order of the prompts.

    Raises:
        ValueError: a per_prompt below 1.
    """
    require_positive_integer("per_prompt", per_prompt)
    rng = random.Random(f"verifier pairs, {seed}")
    texts = [completion.text for completion in rollouts.completions]
    is_right = rollouts.answer_rewards.bool().tolist()
    pairs = []
    for start in range(0, len(texts), rollouts.group_size):
        group = range(start, start + rollouts.group_size)
        right = dict.fromkeys(texts[i] for i in group if is_right[i])
        wrong = dict.fromkeys(texts[i] for i in group if not is_right[i])
        possible = [
            PreferencePair(rollouts.prompts[start], chosen, rejected)
            for chosen in right
            for rejected in filter(may_be_rejected, wrong)
        ]
        pairs += rng.sample(possible, min(per_prompt, len(possible)))
    return pairs
