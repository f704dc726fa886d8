"""The project's own files agree with each other: pins, tasks, pages, budgets."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gsmrl_helpers.book import toc_files
from gsmrl_helpers.paths import ROOT, NotACloneError, find_root, relative_to_root

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load_tool(name: str):
    """Import a script of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


tasks = load_tool("tasks")
lock = load_tool("lock")

FIXED_BY_THE_COURSE = (
    *("jupyterlab", "jupytext", "jupyter-book", "torch", "transformers", "vllm", "flash-attn"),
    *("einops", "matplotlib", "seaborn", "ipywidgets", "nbval", "papermill"),
)


# --- pins -------------------------------------------------------------------------------------


def read_pins(lines: list[str]) -> dict[str, str]:
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def constraints() -> dict[str, str]:
    return read_pins((ROOT / "constraints.txt").read_text().splitlines())


def test_constraints_pin_every_direct_dependency_as_the_project_allows():
    pins = constraints()
    for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line


def test_pins_hold_on_any_machine():
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"^(?!#).*(\+|@|://|^-)", text, re.MULTILINE)
    assert constraints()["torch"] == "2.13.0"


def environment_pins() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["dependencies"][:2] == [f"python={lock.GPU_PYTHON}", "pip"]
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert pip[0] == "--editable .[dev,gpu]"
    return read_pins(pip[1:])


def test_conda_s_pins_are_all_that_the_project_names_and_as_it_allows():
    pins = environment_pins()
    named = [Requirement(line) for line in lock.requirements(lock.GPU_EXTRAS)]
    assert pins.keys() == {canonicalize_name(requirement.name) for requirement in named}
    for requirement in named:
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
    assert {*FIXED_BY_THE_COURSE} <= pins.keys()
    assert pins["torch"].startswith("2.14.") and pins["vllm"].startswith("0.33.")


@pytest.mark.full
def test_conda_s_pins_still_resolve_together():
    """On the package index of today; where there is none, nothing can be said."""
    pins = environment_pins()
    try:
        resolved = lock.resolve([f"{name}=={version}" for name, version in pins.items()])
    except ValueError as error:
        if re.search(r"error sending request|dns error|Failed to fetch", str(error)):
            pytest.skip(f"the package index cannot be reached: {error}")
        raise
    assert pins.items() <= resolved.items()
    with pytest.raises(ValueError, match="do not resolve"):
        lock.resolve([f"vllm=={pins['vllm']}", "torch==2.13.0"])


def test_jupyter_book_and_transformers_stay_in_their_ranges():
    specifiers = {r.name: str(r.specifier) for r in map(Requirement, PROJECT["dependencies"])}
    assert specifiers["jupyter-book"] == "<2,>=1.0.4.post1"
    assert specifiers["transformers"] == "<5.20,>=5.16.1"
    assert specifiers["torch"] == "<2.15,>=2.13" and PROJECT["requires-python"] == ">=3.11"


# --- paths ------------------------------------------------------------------------------------


def test_paths_hang_on_the_clone_wherever_one_stands(monkeypatch, tmp_path):
    monkeypatch.delenv("GSMRL_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    assert find_root() == ROOT == Path(__file__).resolve().parents[1]
    assert relative_to_root(ROOT / "runs" / "pocket") == "runs/pocket"
    assert relative_to_root(tmp_path) == str(tmp_path.resolve())


def test_a_root_that_is_no_clone_is_refused_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("GSMRL_ROOT", str(tmp_path))
    with pytest.raises(NotACloneError, match=r"pip install -e .*GSMRL_ROOT"):
        find_root()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert find_root() == tmp_path.resolve()


# --- pages and tasks ----------------------------------------------------------------------------


def test_every_page_of_the_toc_has_a_file_and_every_notebook_a_page():
    pages = toc_files(ROOT)
    assert len(pages) == len(set(pages))
    notebooks = {path.relative_to(ROOT) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks <= set(pages)


def test_jupyterlab_opens_a_pair_whatever_its_file_times():
    settings = tomllib.loads((ROOT / "jupytext.toml").read_text())
    assert settings["outdated_text_notebook_margin"] == float("inf")
    assert settings["formats"] == "ipynb,py:percent"


def test_make_ci_and_the_readme_call_the_one_task_script():
    make = (ROOT / "Makefile").read_text()
    assert f"{' '.join(tasks.TASKS)}:\n\t@$(PYTHON) tools/tasks.py $@" in make
    assert "make test\nexec make test-vllm\n" in (ROOT / ".ci" / "run").read_text()
    assert "bash .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    for command in ("make book", "make test", "tools/tasks.py book", "tools/tasks.py test"):
        assert command in (ROOT / "README.md").read_text(), command


def test_the_budgets_of_the_stages_add_up_to_what_is_promised():
    stages = tasks.test_stages()
    names = ["format", "lint", "pairs", "pytest", "nbval", "book", "pages", "browser"]
    assert [stage.name for stage in stages] == names
    assert sum(stage.budget_s for stage in stages) <= 25 * 60
    assert len(tasks.matrix_stages()) == 4
    environments = {tuple(sorted(stage.env.items())) for stage in tasks.matrix_stages()}
    assert len(environments) == 4


def test_a_stage_that_exceeds_its_budget_is_stopped_with_its_children_and_named():
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = f"import subprocess; subprocess.run({sleep!r})"
    start = time.monotonic()
    reason = tasks.run_stage(tasks.Stage("slow one", [sys.executable, "-c", child], 2))
    assert reason == "slow one: stopped after its budget of 2 s"
    assert time.monotonic() - start < 20


REPORT = '<testsuites><testsuite tests="4" failures="0" errors="0" skipped="1"/></testsuites>'


@pytest.mark.parametrize(
    ("codes", "last"),
    [
        ((0, 0), "3 passed, 0 failed, 1 skipped"),
        ((0, 7), "3 passed, 1 failed, 1 skipped"),
        ((7, 0), "0 passed, 1 failed, 0 skipped"),  # the second stage then does not run
    ],
)
def test_tests_end_with_one_line_that_counts(monkeypatch, tmp_path, capfd, codes, last):
    junit = tmp_path / "out" / "second.xml"
    monkeypatch.setattr(tasks, "TEST_OUTPUT", tmp_path / "out")
    write = f"import pathlib; pathlib.Path({str(junit)!r}).write_text({REPORT!r}); "
    scripts = [f"exit({codes[0]})", write + f"exit({codes[1]})"]
    first, second = ([sys.executable, "-c", script] for script in scripts)
    stages = [tasks.Stage("first", first, 30), tasks.Stage("second", second, 30, {}, junit)]
    assert tasks.run_tests(stages) == (1 if any(codes) else 0)
    printed = capfd.readouterr().out
    assert printed.rstrip().splitlines()[-1] == last
    assert ("RED" in printed) == any(codes)


def test_an_environment_is_installed_again_only_for_new_requirements(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text("a")
    (tmp_path / "constraints.txt").write_text("b")
    interpreter = tmp_path / "environment" / tasks.PYTHON.relative_to(tasks.VENV)
    interpreter.parent.mkdir(parents=True)
    interpreter.touch()
    calls = []
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    monkeypatch.setattr(tasks.subprocess, "run", lambda command, **options: calls.append(command))
    assert tasks.set_up(tmp_path / "environment", "bench") == interpreter
    tasks.set_up(tmp_path / "environment", "bench")
    assert len(calls) == 1 and calls[0][0] == str(interpreter)
    assert calls[0][-3:] == [".[bench]", "--constraint", "constraints.txt"]
    (tmp_path / "constraints.txt").write_text("c")
    tasks.set_up(tmp_path / "environment", "bench")
    assert len(calls) == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows has no executable bit")
def test_scripts_can_be_executed():
    for script in (".ci/run", "tools/install-debian.sh"):
        assert os.access(ROOT / script, os.X_OK), script
        assert subprocess.run(["bash", "-n", str(ROOT / script)]).returncode == 0
