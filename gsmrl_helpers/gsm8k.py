"""GSM8K: found, downloaded or imported, and always the same bytes.

The 7,473 training and 1,319 test problems of Cobbe et al. (2021), "Training Verifiers to Solve
Math Word Problems" (MIT licence). Every file is checked against its SHA-256 sum before a row of
it is read, so a result never rests on a cut or edited copy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import pooch

from gsmrl_helpers.paths import DATA_DIR, ROOT
from gsmrl_helpers.problems import Problem, read_problems_jsonl

GSM8K_URL = (
    "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data/"
)
GSM8K_SHA256 = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
DATA_VARIABLE = "GSMRL_DATA"
DOWNLOAD_TIMEOUT_S = 15
DOWNLOAD_RETRIES = 2


class Gsm8kNotFoundError(FileNotFoundError):
    """GSM8K is in none of the folders searched and can't be downloaded."""


class Gsm8kChecksumError(ValueError):
    """A file's SHA-256 sum is not GSM8K's."""


def load_gsm8k(
    split: str, limit: int | None = None, data_dir: str | Path | None = None
) -> list[Problem]:
    """Load a split of GSM8K, in the file's order.

    The file ``gsm8k/<split>.jsonl`` is looked for in the folder that the environment variable
    ``GSMRL_DATA`` names (a relative one counts from the project's root), then in the project's
    data folder, to which it is downloaded if it is in neither.

    Args:
        split: ``"train"`` (7,473 problems) or ``"test"`` (1,319).
        limit: At most this many problems, from the start; None for all.
        data_dir: Search this folder, and no other.

    Returns:
        The problems, golds stripped.

    Raises:
        ValueError: The split is unknown, the limit is not an integer of at least 0, or a row is
            malformed.
        Gsm8kChecksumError: The file found is not GSM8K's; the message gives both sums.
        Gsm8kNotFoundError: There is no file and no network; the message says what to do.
    """
    _check_split(split)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"limit must be None or an integer of at least 0, got {limit!r}")
    folders = [Path(data_dir)] if data_dir is not None else _data_folders()
    path = _find(split, folders) or _download(split, folders)
    _check_sum(split, path.read_bytes(), path)
    return read_problems_jsonl(path)[:limit]


def import_gsm8k(from_dir: str | Path, data_dir: str | Path | None = None) -> list[Path]:
    """Copy both splits from a local folder to the data folder, after the same check.

    Both files are checked before either is written, and each appears whole or not at all.

    Args:
        from_dir: A folder with ``train.jsonl`` and ``test.jsonl``, or with ``gsm8k/`` that has.
        data_dir: Where ``gsm8k/`` is to be; the project's data folder if None.

    Returns:
        The paths written.

    Raises:
        Gsm8kNotFoundError: A file is missing in ``from_dir``.
        Gsm8kChecksumError: A file is not GSM8K's.
    """
    from_dir, target_dir = Path(from_dir), Path(data_dir or DATA_DIR) / "gsm8k"
    contents = {}
    for split in GSM8K_SHA256:
        source = _find(split, [from_dir]) or from_dir / f"{split}.jsonl"
        if not source.is_file():
            raise Gsm8kNotFoundError(f"no {split}.jsonl in {from_dir} or {from_dir / 'gsm8k'}")
        contents[split] = source.read_bytes()
        _check_sum(split, contents[split], source)
    target_dir.mkdir(parents=True, exist_ok=True)
    return [
        _write_whole(target_dir / f"{split}.jsonl", content) for split, content in contents.items()
    ]


def _check_split(split: str) -> None:
    if split not in GSM8K_SHA256:
        raise ValueError(f"unknown split {split!r}; GSM8K has {', '.join(GSM8K_SHA256)}")


def _data_folders() -> list[Path]:
    named = os.environ.get(DATA_VARIABLE)
    return [ROOT / named, DATA_DIR] if named else [DATA_DIR]


def _find(split: str, folders: Iterable[Path]) -> Path | None:
    paths = (folder / "gsm8k" / f"{split}.jsonl" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _download(split: str, folders: list[Path]) -> Path:
    """Fetch the split into the last of the folders searched, the one that is ours to write."""
    name = f"{split}.jsonl"
    registry = pooch.create(
        path=folders[-1] / "gsm8k",
        base_url=GSM8K_URL,
        registry={name: f"sha256:{GSM8K_SHA256[split]}"},
        retry_if_failed=DOWNLOAD_RETRIES,
    )
    try:
        return Path(
            registry.fetch(name, downloader=pooch.HTTPDownloader(timeout=DOWNLOAD_TIMEOUT_S))
        )
    except OSError as error:  # every network error of requests is one
        searched = " or ".join(str(folder / "gsm8k" / name) for folder in folders)
        raise Gsm8kNotFoundError(
            f"no {searched}, and {GSM8K_URL}{name} can't be downloaded ({error}). Without a "
            f"network, set {DATA_VARIABLE} to a folder that holds gsm8k/train.jsonl and "
            "gsm8k/test.jsonl, or run `gsmrl data gsm8k --from DIR` with the folder of the two."
        ) from error
    except ValueError as error:  # pooch names both sums and keeps nothing
        raise Gsm8kChecksumError(str(error)) from error


def _check_sum(split: str, content: bytes, path: Path) -> None:
    found, expected = hashlib.sha256(content).hexdigest(), GSM8K_SHA256[split]
    if found != expected:
        raise Gsm8kChecksumError(
            f"{path} is not GSM8K's {split} split: its SHA-256 is {found}, expected {expected}. "
            "Remove it, then download or import it again."
        )


def _write_whole(path: Path, content: bytes) -> Path:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    return part.replace(path)
