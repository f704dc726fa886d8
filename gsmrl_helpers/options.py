"""The options of the policy-gradient components: what is allowed, and how the rest is refused."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any, Literal, get_args

Baseline = Literal["mean", "none"]
AdvantageNormalizer = Literal["std", "none", "mean"]
ImportanceReweighting = Literal["none", "noclip", "grpo", "gspo", "cispo"]
LossNormalization = Literal["sequence", "constant", "token"]
KLEstimator = Literal["k1", "k2", "k3"]


def profile_names() -> list[str]:
    """The profiles that come with the package."""
    files = (resources.files("gsmrl_helpers") / "profiles").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def require_choice(name: str, value: Any, allowed: Any) -> None:
    """Refuse a `value` that is not among the values of the `allowed` Literal type.

    Raises:
        ValueError: naming the option, what was given and what is allowed.
    """
    choices = get_args(allowed)
    if value not in choices:
        raise ValueError(
            f"{name}={value!r} is unknown: allowed are {', '.join(map(repr, choices))}"
        )


def require_number(name: str, value: Any, minimum: float, *, above: bool = False) -> None:
    """Refuse a `value` that is not a number of at least `minimum` (more than it, if `above`).

    Raises:
        ValueError: naming the option, what was given and what is allowed.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # NaN fails both comparisons, so it is refused as well.
    if not (is_number and (value > minimum if above else value >= minimum)):
        bound = f"greater than {minimum}" if above else f"at least {minimum}"
        raise ValueError(f"{name}={value!r} must be a number {bound}")


def require_positive_integer(name: str, value: Any) -> None:
    """Refuse a `value` that is not an integer of at least 1.

    Raises:
        ValueError: naming the option, what was given and what is allowed.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1")


def require_finite(name: str, value: Any) -> None:
    """Refuse a `value` that is not a finite number.

    Raises:
        ValueError: naming the option and what was given.
    """
    require_number(name, value, -math.inf, above=True)
    if math.isinf(value):
        raise ValueError(f"{name}={value!r} must be a finite number")
