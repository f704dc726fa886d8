"""The commands `gsmrl notebooks ...`: pairs of .py and .ipynb, the rules of a chapter, claims."""

from __future__ import annotations

from typing import Annotated

import typer

from gsmrl_helpers.command_reports import report, say_errors
from gsmrl_helpers.paths import relative_to_root

notebooks_app = typer.Typer(help="Pairs of .py and .ipynb.", no_args_is_help=True)


@notebooks_app.command("check")
@say_errors
def notebooks_check() -> None:
    """Check pairs, tags, outputs, litter, the rules of a chapter, claims and recorded runs."""
    from gsmrl_helpers import book, chapters, claims, notebooks

    paths = notebooks.find_notebooks()
    problems = [*notebooks.iter_problems(paths), *chapters.iter_chapter_problems(paths)]
    problems += claims.iter_claim_problems()
    for page in sorted(book.RECORDED_DIR.glob("*.ipynb")):
        problems += book.recorded_problems(page)
    report(problems, "notebooks")


@notebooks_app.command("execute")
@say_errors
def notebooks_execute(
    names: Annotated[list[str], typer.Argument(help="13, or 13_run_grpo.")],
) -> None:
    """Execute notebooks from cleared outputs and store the outputs in them."""
    from gsmrl_helpers import notebooks

    for path in notebooks.find_notebooks(names):
        notebooks.sync(path)
        notebooks.execute(path)
        typer.echo(f"{relative_to_root(path)}: executed")


@notebooks_app.command("cells")
@say_errors
def notebooks_cells(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Print how long the code cells are, and how many definitions, checks and claims there are."""
    from gsmrl_helpers import chapters, notebooks

    typer.echo(chapters.cell_statistics(notebooks.find_notebooks(names or [])).to_string())


@notebooks_app.command("mutate")
@say_errors
def notebooks_mutate(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Change what each claim cell expects, and report what does not turn red."""
    from gsmrl_helpers import mutation, notebooks

    problems = []
    for result in mutation.mutate_notebooks(notebooks.find_notebooks(names or [])):
        typer.echo(result)
        problems += result.problems
    if any("stays green" in problem for problem in problems):
        typer.echo("stays green: make the tolerance less than one unit of the last digit", err=True)
    report(problems, "mutants")


@notebooks_app.command("new")
@say_errors
def notebooks_new(
    name: Annotated[str, typer.Argument(help="Number and slug, as in 14_on_policy_results.")],
    title: Annotated[str, typer.Argument(help="The chapter's title.")],
) -> None:
    """Write the pair of a new chapter, with every part that a chapter has."""
    from gsmrl_helpers import chapter_template

    path = chapter_template.new_chapter(name, title)
    typer.echo(f"{relative_to_root(path)} and .py: written; give it a line in _toc.yml")


@notebooks_app.command("sync")
@say_errors
def notebooks_sync(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Write each .ipynb from its .py, keeping the outputs of cells that did not change."""
    from gsmrl_helpers import notebooks

    for path in notebooks.find_notebooks(names or []):
        notebooks.sync(path)
        typer.echo(f"{relative_to_root(path)}: written from {path.with_suffix('.py').name}")
