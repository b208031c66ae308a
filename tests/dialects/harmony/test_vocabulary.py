"""The vocabulary of gpt-oss is found on this machine, checked, and fetched from nowhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from antiphon.config.load import environment_variable
from antiphon.dialects.harmony import vocabulary
from antiphon.errors import SetupError

VARIABLE = "TIKTOKEN_ENCODINGS_BASE"


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_package_is_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    cache = tmp_path / "cache" / "vocabulary"
    assert vocabulary.load(None, cache, environment_variable).encode("Hi") == [12194]
    (file,) = cache.iterdir()
    created = file.stat().st_mtime_ns
    assert os.environ.get(VARIABLE) == before, "the environment is as it was"
    monkeypatch.setattr(vocabulary, "_packed", lambda: None)
    again = vocabulary.load(None, cache, environment_variable)
    assert file.stat().st_mtime_ns == created
    assert vocabulary.load(cache, tmp_path / "unused", environment_variable) is again
    assert not (tmp_path / "unused").exists()


def test_broken_copy_is_unpacked_again(tmp_path: Path) -> None:
    (tmp_path / vocabulary.FILE).write_text("cut")
    assert vocabulary.load(None, tmp_path, environment_variable).encode("Hi") == [12194]


def test_folders_without_the_right_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"does not contain o200k_base\.tiktoken"):
        vocabulary.load(tmp_path, tmp_path, environment_variable)
    (tmp_path / vocabulary.FILE).write_text("something else")
    with pytest.raises(SetupError, match="is not the vocabulary of gpt-oss"):
        vocabulary.load(tmp_path, tmp_path, environment_variable)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_packed", lambda: None)
    with pytest.raises(SetupError, match=r"pip install .*\[harmony\]"):
        vocabulary.load(None, tmp_path, environment_variable)
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    with pytest.raises(SetupError, match=r"pip install .*\[harmony\]"):
        vocabulary.load(None, tmp_path, environment_variable)


def test_package_with_another_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    other = tmp_path / "other.gz"
    other.write_bytes(gzip.compress(b"other"))
    monkeypatch.setattr(vocabulary, "_packed", lambda: other)
    with pytest.raises(SetupError, match="set 'vocabulary' of the model"):
        vocabulary.load(None, tmp_path / "cache", environment_variable)


def test_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot write"):
        vocabulary.load(None, tmp_path / "file" / "cache", environment_variable)
