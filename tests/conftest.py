"""Fixtures of several test files: notebooks small enough to execute in a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jupytext
import nbformat
import pytest

from gsmrl_helpers.experiments import experiment_config

Cells = list[tuple[str, list[str]]]
PARAMETERS = (
    'profile = "pocket"\nexperiment = "smoke"\nvariant = "standard"\nseed = 0\n'
    'output_dir = ""\noverrides: dict = {}'
)
# what the run notebook leaves: metrics, a checkpoint, a manifest that says how it ended
SMALL_RUN = """
import json, pathlib
folder = pathlib.Path(output_dir)
folder.mkdir(parents=True, exist_ok=True)
config = {**CONFIG, "seed": seed, **overrides}
manifest = {"status": "running", "config": config, "files": len(list(folder.iterdir()))}
(folder / "manifest.json").write_text(json.dumps(manifest))
rows = [{"step": step, "train_mean_reward": REWARD} for step in range(config["n_grpo_steps"] + 1)]
rows[0]["curve_mean_answer_reward"] = 0.25
(folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
(folder / "checkpoints").mkdir(exist_ok=True)
(folder / "checkpoints" / f"step-{config['n_grpo_steps']:06d}-{'0' * 16}.pt").touch()
assert not pathlib.Path(FAILS).exists(), "made to fail"
(folder / "manifest.json").write_text(json.dumps({**manifest, "status": "finished"}))
"""


@pytest.fixture
def make_notebook(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes an .ipynb of code cells, given as (source, tags)."""

    def make(cells: Cells, name: str = "10_small.ipynb", pair: bool = False) -> Path:
        notebook = nbformat.v4.new_notebook(
            metadata={
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
            }
        )
        for source, tags in cells:
            metadata = {"tags": tags} if tags else {}
            notebook.cells.append(nbformat.v4.new_code_cell(source, metadata=metadata))
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        if pair:
            jupytext.write(notebook, path.with_suffix(".py"), fmt="py:percent")
        return path

    return make


@pytest.fixture
def run_notebook(make_notebook, tmp_path):
    """A notebook that leaves what the run notebook leaves, and fails where `fails` exists."""
    config = experiment_config("smoke").model_dump(mode="json")
    constants = f"CONFIG = {config!r}\nFAILS = {str(tmp_path / 'fails')!r}\nREWARD = 0.5\n"
    return make_notebook([(PARAMETERS, ["parameters"]), (constants + SMALL_RUN, [])])
