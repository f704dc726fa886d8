"""Write constraints.txt and environment.yml from the packages installed in this environment.

Usage: python tools/lock.py [--python PATH_TO_THE_INTERPRETER]

constraints.txt pins every package; environment.yml (conda's form) pins the direct dependencies.
Local version labels such as `+cpu` are dropped, so that the pins hold on every machine.
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

ENVIRONMENT_HEADER = """\
# The same pins for conda: `conda env create -f environment.yml`, then `conda activate gsmrl`.
# Written by tools/lock.py; a test compares the pins with constraints.txt.
name: gsmrl
channels:
  - conda-forge
dependencies:
  - python={python}
  - pip
  - pip:
      - --constraint constraints.txt
      - --editable .[dev]
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


def direct_dependencies(extras: tuple[str, ...] = ("dev",)) -> list[str]:
    """Return the canonical names of the project's own dependencies and those of `extras`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    return sorted({canonical(re.split(r"[<>=!~;\[ ]", line)[0]) for line in requirements})


def main() -> int:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter to read")
    python = parser.parse_args().python

    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    pins = installed(python)
    missing = [name for name in direct_dependencies() if name not in pins]
    if missing:
        print(f"not installed, so not pinned: {', '.join(missing)}", file=sys.stderr)
        return 1

    constraints = [f"{name}=={number}" for name, number in pins.values()]
    text = CONSTRAINTS_HEADER.format(python=version) + "\n".join(constraints) + "\n"
    (ROOT / "constraints.txt").write_text(text)

    direct = [f"      - {pins[name][0]}=={pins[name][1]}" for name in direct_dependencies()]
    text = ENVIRONMENT_HEADER.format(python=version) + "\n".join(direct) + "\n"
    (ROOT / "environment.yml").write_text(text)
    print(f"constraints.txt: {len(constraints)} pins; environment.yml: {len(direct)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
