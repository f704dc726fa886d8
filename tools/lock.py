"""Write the pins: constraints.txt for `make setup`, environment.yml for conda and two GPUs.

Usage: python tools/lock.py [--python PATH_TO_THE_INTERPRETER]

constraints.txt pins every package that is installed in that environment. environment.yml pins what
the project names itself, vLLM and FlashAttention included, from one resolution for Python 3.12 on
Linux (`uv pip compile`, which needs a network and installs nothing). Local version labels such as
`+cpu` are dropped, so that the pins hold on every machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_PINNED = {"gsmrl-helpers", "pip", "setuptools", "wheel"}

CONSTRAINTS_HEADER = """\
# Every package of the environment in which this book was executed and tested (Python {python}).
# Written by tools/lock.py. Use: pip install -e ".[dev]" -c constraints.txt
"""

GPU_PYTHON = "3.12"
GPU_PLATFORM = "x86_64-manylinux_2_28"
GPU_EXTRAS = ("dev", "gpu")

ENVIRONMENT_HEADER = f"""\
# For two GPUs: Python {GPU_PYTHON} and all that the course can use, with vLLM and FlashAttention.
# FlashAttention builds against the torch that is there, so torch comes first; the page
# "How to run it" has the three commands. Written by tools/lock.py.
name: gsmrl
channels:
  - conda-forge
dependencies:
  - python={GPU_PYTHON}
  - pip
  - pip:
      - --editable .[{",".join(GPU_EXTRAS)}]
"""


def canonical(name: str) -> str:
    """Return the normalised name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(python: str) -> dict[str, tuple[str, str]]:
    """Return canonical name -> (name, version without a local label) of what `python` sees."""
    listing = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    pins = {}
    for package in json.loads(listing):
        name = canonical(package["name"])
        if name not in NOT_PINNED:
            pins[name] = (package["name"], package["version"].split("+")[0])
    return dict(sorted(pins.items()))


def requirements(extras: tuple[str, ...] = ("dev",)) -> list[str]:
    """Return the project's own requirements and those of `extras`, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return project["dependencies"] + [line for extra in extras for line in optional[extra]]


def direct_dependencies(extras: tuple[str, ...] = ("dev",)) -> list[str]:
    """Return the canonical names of what `requirements` asks for."""
    return sorted({canonical(re.split(r"[<>=!~;\[ ]", line)[0]) for line in requirements(extras)})


def resolve(lines: list[str]) -> dict[str, str]:
    """Return canonical name -> version of one resolution of the requirements for the GPU machine.

    Raises:
        ValueError: there is none, or the package index could not be asked; with uv's explanation.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"]
    command += ["--no-annotate", "--python-version", GPU_PYTHON]
    command += ["--python-platform", GPU_PLATFORM, "-"]
    asked = "\n".join(lines)
    done = subprocess.run(command, input=asked, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"the requirements of environment.yml do not resolve: {done.stderr}")
    pins = (line.split(" ")[0].split("==") for line in done.stdout.splitlines() if "==" in line)
    return {canonical(name): version.split("+")[0] for name, version in pins}


def write_constraints(python: str) -> int:
    """Write constraints.txt and return how many packages it pins."""
    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    pins = installed(python)
    if missing := [name for name in direct_dependencies() if name not in pins]:
        raise ValueError(f"not installed, so not pinned: {', '.join(missing)}")
    lines = [f"{name}=={number}" for name, number in pins.values()]
    text = CONSTRAINTS_HEADER.format(python=version) + "\n".join(lines) + "\n"
    (ROOT / "constraints.txt").write_text(text)
    return len(lines)


def write_environment() -> int:
    """Write environment.yml and return how many packages it pins."""
    pins = resolve(requirements(GPU_EXTRAS))
    lines = [f"      - {name}=={pins[name]}" for name in direct_dependencies(GPU_EXTRAS)]
    (ROOT / "environment.yml").write_text(ENVIRONMENT_HEADER + "\n".join(lines) + "\n")
    return len(lines)


def main() -> int:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter to read")
    python = parser.parse_args().python
    try:
        print(f"constraints.txt: {write_constraints(python)} pins")
        print(f"environment.yml: {write_environment()} pins")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
