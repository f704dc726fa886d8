"""One real server for the module's tests, and the interpreter that has vLLM."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gsmrl_helpers.paths import ROOT

PYTHON = os.environ.get("GSMRL_VLLM_PYTHON", str(ROOT / ".venv-vllm/bin/python"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if shutil.which(PYTHON) is None:
                reason = "no environment with vLLM: make test-vllm makes .venv-vllm"
                item.add_marker(pytest.mark.skip(reason=reason))
