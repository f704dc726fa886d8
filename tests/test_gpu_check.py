"""The script for a machine with a GPU, run at a tiny shape on the CPU."""

from __future__ import annotations

import argparse
import importlib.util
import json

import pytest
import torch

from gsmrl_helpers.paths import ROOT

spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools" / "gpu_check.py")
gpu_check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_check)


def arguments(**changes: object) -> argparse.Namespace:
    settings = {"tiny": True, "profile": "two_gpu", "rows": 8, "steps": 1, "peak_tflops": 1.0}
    return argparse.Namespace(**{**settings, **changes})


def test_it_runs_and_its_planner_is_right() -> None:
    result = gpu_check.check(arguments())
    json.dumps(result, allow_nan=False)
    (step,) = result["steps"]
    assert result["ok"] and abs(step["planner_error"]) < 0.05
    assert step["mfu"] == step["flops_per_second"] / 1e12
    assert 0 < result["gradient_difference"]["sdpa"] < 0.05
    assert result["settings"]["master_weights"] and result["settings"]["dtype"] == "bfloat16"


def test_a_planner_that_is_wrong_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_check.step_peak

    def too_much(work: object) -> tuple[str, float]:
        phase, n_bytes = right(work)
        return phase, 1.2 * n_bytes

    monkeypatch.setattr(gpu_check, "step_peak", too_much)
    assert not gpu_check.check(arguments())["ok"]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--tiny"):
        gpu_check.check(arguments(tiny=False))
