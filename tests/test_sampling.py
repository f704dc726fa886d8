"""The draw of one token: parameters, seeds, probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from gsmrl_helpers.sampling import (
    SamplingParams,
    derive_seed,
    next_token_probs,
    row_uniforms,
    sample_next_token,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("temperature", -0.5),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("max_tokens", 0),
        ("stop", "</answer>"),
        ("stop", ("",)),
        ("seed", -1),
        ("seed", None),
        ("temprature", 1.0),
    ],
)
def test_invalid_parameter_is_named_with_its_value(field, value):
    with pytest.raises(ValueError) as error:
        SamplingParams(**{"seed": 0, field: value})
    assert field in str(error.value)
    assert f"input_value={value!r}" in str(error.value)


def test_seed_has_no_default():
    with pytest.raises(ValueError, match="seed"):
        SamplingParams()


def test_params_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        SamplingParams(seed=0).n = 2


def test_derive_seed_is_stable_and_tells_names_apart():
    assert derive_seed(0, "rollout", 3) == 5012165683833411088
    seeds = [derive_seed(run, name, step) for run in (0, 1) for name in "ab" for step in range(50)]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "ab") != derive_seed(0, "a", "b")
    assert derive_seed(0, 1) != derive_seed(0, "1")
    with pytest.raises(ValueError, match=r"1\.5"):
        derive_seed(0, 1.5)


def test_row_uniforms_are_uniform_and_depend_on_every_argument():
    u = row_uniforms(seed=1, prompt_token_ids=[5, 6], sample_index=0, num_tokens=20_000)
    assert u.dtype == np.float64 and u.min() >= 0 and u.max() < 1
    assert kstest(u, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / np.sqrt(len(u))
    assert np.array_equal(u[:100], row_uniforms(1, (5, 6), 0, 100)), "a prefix of the same stream"
    others = [row_uniforms(2, [5, 6], 0, 100), row_uniforms(1, [56], 0, 100)]
    others += [row_uniforms(1, [5, 6], 1, 100)]
    assert all(not np.any(np.isin(u[:100], other)) for other in others)


def test_first_uniforms_of_many_rows_are_uniform():
    u = np.array([row_uniforms(0, [p], i, 1)[0] for p in range(100) for i in range(50)])
    assert kstest(u, "uniform").pvalue > 0.001


def test_next_token_probs_by_hand():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()

    def probs(**kwargs):
        return next_token_probs(logits, SamplingParams(seed=0, **kwargs))[0].tolist()

    assert probs() == pytest.approx([0.5, 0.25, 0.15, 0.1])
    # temperature 1/2 squares: .25, .0625, .0225, .01 over .345
    assert probs(temperature=0.5) == pytest.approx([0.724638, 0.181159, 0.065217, 0.028986], 1e-4)
    assert probs(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probs(top_k=-1) == probs(top_k=0) == probs(top_k=9) == probs()
    assert probs(top_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probs(top_p=0.8) == pytest.approx([5 / 9, 2.5 / 9, 1.5 / 9, 0])
    assert probs(top_p=0.01) == [1, 0, 0, 0]
    # top-k first: of .5, .25, .15 the renormalised masses are .556, .278, .167
    assert probs(top_k=3, top_p=0.8) == pytest.approx([2 / 3, 1 / 3, 0, 0])


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
    ],
)
def test_twenty_thousand_samples_follow_the_distribution(kwargs):
    params = SamplingParams(seed=11, **kwargs)
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(3))
    uniforms = torch.from_numpy(row_uniforms(params.seed, [1, 2, 3], 0, 20_000))
    tokens = sample_next_token(logits.expand(20_000, -1), uniforms, params)
    counts = np.bincount(tokens.numpy(), minlength=40)

    # The expectation is computed here from scratch, not with the function under test.
    p = np.exp(logits[0].double().numpy() / params.temperature)
    if params.top_k:
        p[np.argsort(-p)[params.top_k :]] = 0
    p /= p.sum()
    order = np.argsort(-p)
    p[order[1:][np.cumsum(p[order])[:-1] >= params.top_p]] = 0
    p /= p.sum()

    assert counts[p == 0].sum() == 0
    expected = 20_000 * p[p > 0]
    assert expected.min() > 5, "chi-squared needs filled cells"
    assert chisquare(counts[p > 0], expected).pvalue > 0.001
    # ... and it can fail: the same counts against another temperature
    other = p[p > 0] ** 1.25
    assert chisquare(counts[p > 0], 20_000 * other / other.sum()).pvalue < 1e-6


def test_zero_probability_is_never_drawn_not_even_at_the_ends():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    params = SamplingParams(seed=0)
    uniforms = torch.tensor([0.0, 1 - 2.0**-52], dtype=torch.float64)
    assert sample_next_token(logits.expand(2, -1), uniforms, params).tolist() == [1, 3]
    # the sum of float probabilities ends above or below 1: the last uniform still finds a token
    many = torch.randn(2000, 50, generator=torch.Generator().manual_seed(0))
    many[:, -1] = -torch.inf
    tokens = sample_next_token(many, torch.full((2000,), 1 - 2.0**-52, dtype=torch.float64), params)
    assert set(tokens.tolist()) == {48}


def test_greedy_takes_the_best_and_diverged_logits_are_refused():
    greedy = SamplingParams(seed=0, temperature=0)
    uniforms = torch.zeros(1, dtype=torch.float64)
    assert sample_next_token(torch.tensor([[1.0, 3.0, 2.0]]), uniforms, greedy).tolist() == [1]
    for bad in ([torch.nan, 1.0], [torch.inf, 1.0], [-torch.inf, -torch.inf]):
        for params in (greedy, SamplingParams(seed=0)):
            with pytest.raises(FloatingPointError, match="NaN or infinity"):
                sample_next_token(torch.tensor([bad]), uniforms, params)
