"""Which runs an experiment asks for: each variant once a seed, each with a folder of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.experiments import (
    default_seeds,
    experiment_config,
    real_experiments,
    shared_run,
    variants_of,
)
from gsmrl_helpers.notebooks import read_notebook
from gsmrl_helpers.paths import RUNS_DIR, relative_to_root
from gsmrl_helpers.records import MANIFEST, BrokenManifestError, read_manifest, stored_config
from gsmrl_helpers.run_process import describe_job
from gsmrl_helpers.runs import RUN_NOTEBOOK, check_parameters, declared_parameters, run_folder

State = Literal["waiting", "running", "finished", "kept", "failed"]


@dataclass(eq=False)
class Run:
    """One run of an experiment, and how it stands."""

    experiment: str
    variant: str
    seed: int
    config: RunConfig
    folder: Path
    notebook: Path
    parameters: dict[str, Any]
    state: State = "waiting"
    failure: str | None = None

    @property
    def name(self) -> str:
        return relative_to_root(self.folder)

    def job(self) -> str:
        """What a process, on this machine or another, needs to know of it."""
        return describe_job(self.folder, self.parameters, self.notebook)

    def end(self, failure: str | None, state: State = "finished") -> None:
        """Say how it ended: as failed, or else in `state`."""
        self.failure = failure
        self.state = "failed" if failure else state


def plan_runs(
    experiments: Sequence[str],
    profile: str,
    seeds: Sequence[int] | None = None,
    variants: Sequence[str] | None = None,
    runs_dir: Path = RUNS_DIR,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    notebook: Path = RUN_NOTEBOOK,
) -> list[Run]:
    """The runs of these experiments, each once, also where two experiments share it.

    Args:
        experiments: names of the catalogue, or ["all"] for every one that is no smoke test.
        seeds: of every variant; None is what the catalogue asks for.
        variants: some of the only experiment's; None is all.

    Raises:
        ValueError: an unknown name or setting, one named twice, or a folder that holds a run with
            other settings while not `fresh`.
    """
    names = real_experiments(profile) if list(experiments) == ["all"] else list(experiments)
    if "all" in names:
        raise ValueError(f"'all' stands alone, and contains {', '.join(real_experiments(profile))}")
    if variants is not None and len(names) > 1:
        raise ValueError(f"--variants {','.join(variants)}: those of which of {', '.join(names)}?")
    for named in (names, variants or [], seeds or []):
        if not_once := {name for name, n in Counter(named).items() if n > 1}:
            raise ValueError(f"named twice: {', '.join(map(str, sorted(not_once)))}")
    declared = declared_parameters(read_notebook(notebook))
    runs: dict[Path, Run] = {}
    for name in names:
        chosen = variants_of(name) if variants is None else variants
        of_name = default_seeds(name, profile) if seeds is None else seeds
        for variant, seed in product(chosen, of_name):
            experiment_config(name, profile, variant, seed)  # the names as they were given
            experiment, shared = shared_run(name, variant)
            parameters = {"profile": profile, "experiment": experiment, "variant": shared}
            parameters |= {"seed": seed, "overrides": dict(overrides or {})}
            check_parameters(parameters, declared)
            config = experiment_config(**parameters)
            folder = run_folder(experiment, profile, shared, seed, runs_dir)
            if not fresh:
                _refuse_other_settings(folder, config.model_dump(mode="json"))
            runs[folder] = Run(experiment, shared, seed, config, folder, notebook, parameters)
    return list(runs.values())


def _refuse_other_settings(folder: Path, config: dict[str, Any]) -> None:
    if not (folder / MANIFEST).is_file():
        return
    try:
        there = stored_config(read_manifest(folder))
    except BrokenManifestError:
        return  # only that run fails, when its turn comes
    if differing := sorted(key for key in config if config[key] != there.get(key)):
        raise ValueError(
            f"{relative_to_root(folder)} holds a run with other settings ({', '.join(differing)}): "
            "--fresh (or FRESH=1 make book) sets it aside, --runs-dir keeps both"
        )
