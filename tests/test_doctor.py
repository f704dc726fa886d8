"""The doctor: what it finds, what it calls a problem, and when it exits with 1."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gsmrl_helpers import doctor, scales
from gsmrl_helpers.cli import app
from gsmrl_helpers.options import profile_names

PROJECT = '[project]\ndependencies = ["torch>=2.13,<2.15", "Jupyter_Book<2"]\n'


@pytest.fixture
def clone(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "constraints.txt").write_text("# pins\njupyter-book==1.0.4\ntorch==2.13.0\n")
    return tmp_path


@pytest.mark.parametrize(
    ("installed", "state", "said"),
    [
        ({"torch": "2.13.0", "jupyter-book": "1.0.4"}, "ok", "as pinned, torch 2.13.0"),
        ({"torch": "2.14.1", "jupyter-book": "1.0.4"}, "note", "torch 2.14.1 (2.13.0)"),
        ({"torch": "2.13.0", "jupyter-book": "2.1.0"}, "problem", "Jupyter_Book is 2.1.0"),
        ({"jupyter-book": "1.0.4"}, "problem", "torch is missing"),
    ],
)
def test_packages_are_compared_with_what_is_needed_and_pinned(clone, installed, state, said):
    check = doctor.check_packages(installed, clone)
    assert check.state == state and said in check.found
    assert bool(check.to_do) == (state != "ok")


def test_local_labels_of_versions_are_left_out():
    assert "+" not in "".join(doctor.installed_versions().values())
    assert doctor.installed_versions()["psutil"]


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (doctor.check_python((3, 11, 7)), "ok"),
        (doctor.check_python((3, 10, 14)), "problem"),
        (doctor.check_cores(1), "note"),
        (doctor.check_cores(2), "ok"),
        (doctor.check_memory(16e9, 8e9), "ok"),
        (doctor.check_memory(16e9, 1e9), "note"),
        (doctor.check_memory(2e9, 2e9), "problem"),
        (doctor.check_disk(20e9), "ok"),
        (doctor.check_disk(1e9), "note"),
        (doctor.check_disk(1e8), "problem"),
        (doctor.check_gpus([]), "note"),
        (doctor.check_gpus(["H100, 81559 MiB"]), "ok"),
    ],
)
def test_only_what_the_pocket_scale_needs_is_a_problem(check, state):
    assert check.state == state


def test_weights_that_are_a_pointer_are_none(tmp_path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    assert doctor.check_policy(tmp_path).state == "problem"
    (tmp_path / "model.safetensors").write_bytes(bytes(2_000_000))
    assert doctor.check_policy(tmp_path).state == "ok"


def test_profiles_say_what_they_lack():
    profiles = {name: scales.read_profile_file(name) for name in profile_names()}
    gpus = {name: scales.gpus_of(profile) for name, profile in profiles.items()}
    assert gpus["pocket"] == gpus["pocket_vllm"] == 0
    assert (gpus["one_gpu"], gpus["two_gpu"], gpus["rtx4080"]) == (1, 2, 2)
    two = profiles["two_gpu"]
    assert scales.what_lacks(two, 2, True, []) == ""
    assert scales.what_lacks(two, 1, False, ["disk"]) == "disk; 2 GPUs, found 1; vLLM"
    assert scales.what_lacks(profiles["pocket"], 0, False, []) == ""
    assert scales.what_lacks(profiles["pocket_vllm"], 0, False, []) == "vLLM"


def test_times_are_those_of_the_runs_on_record(tmp_path):
    def run(seed, seconds, capability="AVX2", steps=100):
        return {
            "config": {"variant": "standard", "seed": seed, "n_grpo_steps": steps},
            "machine": {"cpu_capability": capability, "threads": 1, "gpu": None},
            "started": f"2026-01-0{seed + 1}",
            "wall_seconds": seconds,
        }

    runs = [run(0, 181.0), run(1, 300.0), run(2, 120.0, "AVX512"), run(3, None), run(4, 9, None)]
    del runs[4]["config"]["n_grpo_steps"]  # not GRPO
    runs.append(run(5, 3000.0))
    runs[5]["config"]["variant"] = "clip"  # which takes other steps
    folder = tmp_path / "pocket"
    folder.mkdir()
    for name in ("one", "two"):  # a run that two recordings share counts once
        (folder / f"{name}.manifest.json").write_text(json.dumps({"runs": runs}))
    found = scales.recorded_runs(tmp_path)["pocket"]
    assert scales.time_on_record(found) == (
        "on record: 3 to 5 min (AVX2, 1 thread, 2 runs); 2 min (AVX512, 1 thread, 1 run)"
    )
    assert "preflight" in scales.time_on_record([])


def test_the_real_records_have_times_of_the_pocket_scale():
    runs = scales.recorded_runs()["pocket"]
    assert len(runs) >= 4 and all(run["config"]["n_grpo_steps"] > 0 for run in runs)


@pytest.mark.parametrize(("free", "code"), [(50e9, 0), (1e6, 1)])
def test_the_exit_code_says_whether_the_pocket_scale_can_run(monkeypatch, free, code):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(doctor, "check_packages", lambda _: doctor.Check("packages", "ok", ""))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code, result.output
    for profile in profile_names():
        assert profile in result.output
    assert ("can't run yet" in result.output) == bool(code)
