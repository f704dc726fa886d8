"""Intervals of a mean over few seeds, and how often they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t

Z = 1.96  # of the interval that figures show, as most papers' do: μ ± 1.96 σ/√n
FEWEST = 2  # values; below that nothing is known of their spread


def standard_error(values: Sequence[float]) -> float:
    """σ/√n, σ with n − 1; of one value NaN, since nothing is known of its spread.

    Raises:
        ValueError: no value, or one that is not finite.
    """
    values = np.asarray(values, dtype=float)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(f"values={values.tolist()}: a mean needs values, all of them finite")
    if values.size < FEWEST:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(values.size))


def half_width(values: Sequence[float]) -> float:
    """1.96 σ/√n, half of the interval that the figures show. With few values it is too narrow:
    see `coverage`."""
    return Z * standard_error(values)


def t_half_width(values: Sequence[float], level: float = 0.95) -> float:
    """t · σ/√n with Student's t of n − 1 degrees: half of the interval that verdicts rest on."""
    return float(t.ppf((1 + level) / 2, len(values) - 1)) * standard_error(values)


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of a mean over few seeds: mean ± `t_half_width`."""
    mean, half = float(np.mean(values)), t_half_width(values, level)
    return mean - half, mean + half


def coverage(n: int, factor: float = Z) -> float:
    """How often mean ± factor · σ/√n over n normal values contains the true mean.

    Exact: (mean − μ) / (σ/√n) has Student's distribution with n − 1 degrees of freedom (Student,
    1908), so the chance is 2 F(factor) − 1.

    Raises:
        ValueError: n below two.
    """
    if n < FEWEST:
        raise ValueError(f"n={n}: an interval needs at least {FEWEST} values")
    return float(2 * t.cdf(factor, n - 1) - 1)
