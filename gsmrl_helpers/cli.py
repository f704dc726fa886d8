"""The program `gsmrl`: runs, data, notebooks, the book.

Commands import what they need when they run: `gsmrl --help` should not wait for Sphinx.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from gsmrl_helpers.command_reports import PROFILE_HELP, report, say_errors
from gsmrl_helpers.doctor_command import doctor_command
from gsmrl_helpers.grade_command import grade_command
from gsmrl_helpers.notebook_commands import notebooks_app
from gsmrl_helpers.paths import BUILD_DIR, relative_to_root
from gsmrl_helpers.plan_command import plan_command
from gsmrl_helpers.preflight_command import preflight_command
from gsmrl_helpers.run_command import run_command

app = typer.Typer(
    help="GSM8K RL: run experiments, import data, check notebooks, build the book.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets that are not part of the repository.", no_args_is_help=True)
book_app = typer.Typer(help="The HTML book.", no_args_is_help=True)
pocket_app = typer.Typer(help="The pocket problems and policy.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(notebooks_app, name="notebooks")
app.add_typer(book_app, name="book")
app.add_typer(pocket_app, name="pocket")

MAX_SEEDS = 1000  # of one command: far more than anybody runs, and a slip of the hand


def parse_seeds(text: str) -> list[int]:
    """Read `0`, `0,1,5` or `0-3` (both ends included).

    Raises:
        ValueError: anything else, a negative seed, one named twice, or more than `MAX_SEEDS`.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise ValueError(f"--seeds {text!r}: give numbers as in 0 or 0,1,5 or 0-3")
        asked = range(int(match[1]), int(match[2] or match[1]) + 1)
        if len(asked[: MAX_SEEDS + 1]) + len(seeds) > MAX_SEEDS:
            raise ValueError(f"--seeds {text!r} are more than {MAX_SEEDS}, the most at a time")
        seeds += asked
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"--seeds {text!r} names no seed, or one twice")
    return seeds


def parse_names(text: str) -> list[str]:
    """Read `GRPO,RFT`, with or without spaces.

    Raises:
        ValueError: a name is empty.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"--variants {text!r}: give names as in GRPO,RFT")
    return names


def parse_overrides(settings: list[str]) -> dict[str, Any]:
    """Read `name=value` settings: a value that is JSON is read as such, any other is a string.

    `section.name=value` is a part of a section, as in `vllm.port=8000`.

    Raises:
        ValueError: a setting without `=`, or a name given twice.
    """
    overrides: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, part = name.partition(".")
        target = overrides.setdefault(section, {}) if dot else overrides
        key = part if dot else name
        if not equals or not key or not isinstance(target, dict) or key in target:
            raise ValueError(f"--set {setting!r}: give each name once, as name=value")
        try:
            target[key] = json.loads(value)
        except json.JSONDecodeError:
            target[key] = value
    return overrides


app.command("doctor")(say_errors(doctor_command))
app.command("run")(say_errors(run_command))
app.command("plan")(say_errors(plan_command))
app.command("preflight")(say_errors(preflight_command))
app.command("grade")(say_errors(grade_command))


@app.command()
@say_errors
def record(
    name: Annotated[
        str | None, typer.Argument(help="The recording, or all; without it, a list.")
    ] = None,
    profile: Annotated[str, typer.Option(help=PROFILE_HELP)] = "pocket",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished ones again.")] = False,
) -> None:
    """Make a recorded result and replace it with its manifest; without a name, list them."""
    from gsmrl_helpers import recordings

    if name is not None:
        for chosen in recordings.names_to_record(name):
            typer.echo(relative_to_root(recordings.record(chosen, profile, jobs, fresh)))
        return
    for known, recording in recordings.RECORDINGS.items():
        there = recordings.recording_path(known, profile).is_file()
        typer.echo(f"{known:18}{'on record' if there else 'not yet':12}{recording.what}")


@pocket_app.command("problems")
@say_errors
def pocket_problems(
    split: Annotated[str, typer.Argument(help="pretrain, train, curve, dev or test.")],
    limit: Annotated[int, typer.Option(help="How many.")] = 5,
    seed: Annotated[int, typer.Option(help="The seed of the stream.")] = 0,
    difficulty: Annotated[float, typer.Option(help="From 0 to 1.")] = 0.5,
) -> None:
    """Print generated problems as JSON rows in GSM8K's format."""
    from gsmrl_helpers.pocket_problems import load_pocket_problems

    for problem in load_pocket_problems(split, limit, seed, difficulty):
        typer.echo(json.dumps({"question": problem.question, "answer": problem.answer}))


@pocket_app.command("pretrain")
@say_errors
def pocket_pretrain(
    work_dir: Annotated[Path, typer.Argument(help="Where checkpoints and the policy are kept.")],
) -> None:
    """Make the pocket policy anew; broken off and started again, it goes on."""
    from gsmrl_helpers.pocket_policy import PretrainConfig, pretrain

    typer.echo(relative_to_root(pretrain(PretrainConfig(), work_dir)))


@app.command("student")
@say_errors
def student_edition(
    out: Annotated[Path, typer.Option(help="Where the notebooks go.")] = BUILD_DIR / "student",
) -> None:
    """Write the student edition: notebooks without solutions, for nbgrader, too."""
    from gsmrl_helpers import student

    for path, edition in student.write_student_edition(out):
        points = student.total_points(edition)
        typer.echo(f"{relative_to_root(path)}: {points:g} point{'s' * (points != 1)}")


@data_app.command("gsm8k")
@say_errors
def data_gsm8k(
    source: Annotated[Path, typer.Option("--from", help="A folder with train and test.jsonl.")],
) -> None:
    """Import GSM8K from a folder, with the same check of the sums as a download."""
    from gsmrl_helpers.gsm8k import import_gsm8k

    for path in import_gsm8k(source):
        typer.echo(relative_to_root(path))


@book_app.command("build")
@say_errors
def book_build(
    out: Annotated[Path, typer.Option(help="Folder of the build.")] = BUILD_DIR,
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="A run to show in place of the recorded one.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Whose results on record the results chapters show.")
    ] = "pocket",
) -> None:
    """Build the HTML from stored outputs; any warning is an error."""
    from gsmrl_helpers import book

    html = book.build_book(out.resolve(), run_folder, profile=profile, say=typer.echo)
    typer.echo(html / "index.html")


@book_app.command("check")
@say_errors
def book_check(
    out: Annotated[Path, typer.Option(help="Folder of the build.")] = BUILD_DIR,
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="The run that the build shows.")
    ] = None,
) -> None:
    """Check that every page of the toc is in the site and shows its outputs; say where it is."""
    from gsmrl_helpers import book, progress

    html = out.resolve() / "html"
    report(book.site_problems(out.resolve() / "source", html), "pages")
    typer.echo(f"the book: {html / 'index.html'}")
    if run_folder:
        typer.echo(f"the run:  {html / book.recorded_page(run_folder).with_suffix('.html')}")
        accuracies = progress.validation_accuracies(run_folder)
        for when, step in (("first", min(accuracies)), ("last", max(accuracies))):
            typer.echo(f"{when} validation accuracy: {accuracies[step]:.3f} (step {step})")


@book_app.command("links")
@say_errors
def book_links(
    out: Annotated[Path, typer.Option(help="Folder of the build.")] = BUILD_DIR,
) -> None:
    """Ask every link to elsewhere; exit 1 if a server says that it is broken."""
    from gsmrl_helpers.book_links import ask_links

    links = ask_links(out.resolve())
    for link in links:
        said = f" ({link.info})" if link.verdict == "broken" else ""
        typer.echo(f"{link.verdict}: {link.address}, in {', '.join(link.pages)}{said}")
    counts = Counter(link.verdict for link in links)
    typer.echo("links: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if counts["broken"]:
        raise typer.Exit(1)


@book_app.command("record")
@say_errors
def book_record(run_folder: Path) -> None:
    """Store a run, scrubbed, as the page of the book that records its experiment."""
    from gsmrl_helpers import book

    typer.echo(relative_to_root(book.record_run(run_folder)))


if __name__ == "__main__":
    sys.exit(app())
