"""The program `gsmrl`: what a user got wrong is one clean line, never a traceback."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gsmrl_helpers import run_many
from gsmrl_helpers.cli import app, parse_overrides, parse_seeds
from gsmrl_helpers.options import profile_names

runner = CliRunner()


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", [0]), ("0,1,5", [0, 1, 5]), ("0-3", [0, 1, 2, 3]), ("7, 2-3", [7, 2, 3])],
)
def test_seeds_are_numbers_lists_and_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "1.5", "1-", "3-1", "1,1", "0-2,2", "0-1000", f"1-{10**40}"]
)
def test_other_seeds_are_refused(text):
    with pytest.raises(ValueError, match="--seeds"):
        parse_seeds(text)


def test_settings_are_json_where_they_can_be():
    settings = [
        "learning_rate=1e-4",
        "prompt=r1_zero",
        "reward=null",
        'splits={"curve": 8}',
        "a==b",
    ]
    assert parse_overrides(settings) == {
        "learning_rate": 1e-4,
        "prompt": "r1_zero",
        "reward": None,
        "splits": {"curve": 8},
        "a": "=b",
    }


@pytest.mark.parametrize("settings", [["learning_rate"], ["=3"], ["a=1", "a=2"]])
def test_other_settings_are_refused(settings):
    with pytest.raises(ValueError, match="--set"):
        parse_overrides(settings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "on-polcy"], "on-polcy"),
        (["run", "on-policy", "--profile", "pockt"], "pockt"),
        (["run", "on-policy", "--variants", "grpoo"], "grpoo"),
        (["run", "on-policy", "--variants", ""], "--variants '': give names as in GRPO,RFT"),
        (["run", "on-policy", "--variants", "standard,"], "--variants 'standard,'"),
        (["run", "variants", "--variants", "RFT, none"], "allowed: GRPO"),
        (["run", "on-policy", "--seeds", "x"], "--seeds 'x'"),
        (["run", "on-policy", "--seeds", str(2**63)], "seed"),
        (["run", "on-policy", "all"], "'all' stands alone"),
        (["run", "signal", "--profile", "two_gpu"], "'signal' needs the generated problems"),
        (["run", "on-policy", "--set", "learning_rat=1"], "learning_rat"),
        (["run", "on-policy", "--set", "learning_rate=fast"], "learning_rate"),
        (["notebooks", "execute", "99"], "'99' names 0 notebooks"),
        (["book", "record", "nowhere/p/e/v/seed-0"], "holds no run.ipynb"),
        (["data", "gsm8k", "--from", "nowhere"], "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_user_s_mistake_is_one_line_and_exit_code_2(arguments, said, tmp_path):
    if arguments[0] == "run":
        arguments = [*arguments, "--runs-dir", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr and result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["13 failed: no"], 1)])
def test_run_passes_its_options_on_and_reports_failures(monkeypatch, failures, code):
    seen = {}

    def run_experiments(experiments, profile, seeds, runs_dir, **options):
        seen.update(experiments=experiments, profile=profile, seeds=seeds, **options)
        return failures

    monkeypatch.setattr(run_many, "run_experiments", run_experiments)
    arguments = ["run", "smoke", "on-policy", "--seeds", "0-1", "--jobs", "2"]
    settings = ["--set", "learning_rate=0.5", "--variants", "a,b", "--fresh"]
    result = runner.invoke(app, [*arguments, *settings])
    assert result.exit_code == code
    assert result.stderr == "".join(f"error: {failure}\n" for failure in failures)
    assert seen == {
        "experiments": ["smoke", "on-policy"],
        "profile": "pocket",
        "seeds": [0, 1],
        "jobs": 2,
        "overrides": {"learning_rate": 0.5},
        "fresh": True,
        "variants": ["a", "b"],
        "ray": None,
        "cpus": None,
    }


@pytest.mark.parametrize("command", ["run", "plan", "preflight", "record"])
def test_help_names_every_profile(command: str) -> None:
    help_text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300"}).output
    for name in profile_names():
        assert name in help_text


def test_an_interrupted_run_says_how_it_goes_on(monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gsmrl_helpers.run_many.run_experiments", interrupted)
    result = runner.invoke(app, ["run", "on-policy"])
    assert result.exit_code == 130
    assert result.output == "interrupted: the same command goes on from the last checkpoint\n"


def test_a_part_of_a_section_is_set_by_its_dotted_name():
    assert parse_overrides(["vllm.port=8000", "vllm.python=x", "seed_note=a.b"]) == {
        "vllm": {"port": 8000, "python": "x"},
        "seed_note": "a.b",
    }
    for twice in (["vllm.port=1", "vllm.port=2"], ["vllm=3", "vllm.port=2"], ["vllm.=2"]):
        with pytest.raises(ValueError, match="give each name once"):
            parse_overrides(twice)
