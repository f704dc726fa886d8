"""Packages that only some settings need: imported when they are, or named with their extra."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

EXTRAS = {
    "peft": "lora",
    "bitsandbytes": "adamw8bit",
    "flash_attn": "gpu",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "ray": "ray",
}


def import_extra(package: str, needed_for: str) -> ModuleType:
    """The package, which the setting `needed_for` asks for.

    Raises:
        ValueError: it can't be imported; the message names the extra that installs it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise ValueError(
            f"{needed_for} needs {package}, which can't be imported ({error}): "
            f"pip install 'gsmrl-helpers[{EXTRAS[package]}]', or leave the setting out"
        ) from error
