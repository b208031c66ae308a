"""``antiphon serve`` without a model proposes one that fits this machine."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.cli.suggestion import propose_model, suggestion
from antiphon.config.load import LoadedSettings, load
from antiphon.models.suggestions import Machine

BIG, SMALL = Machine(16 * 10**9, 8), Machine(10**9, 2)
SOURCE = "hf:ggml-org/gpt-oss-20b-GGUF/gpt-oss-20b-mxfp4.gguf"


@pytest.fixture
def loaded(tmp_path: Any) -> LoadedSettings:
    return load({"cache_dir": str(tmp_path)}, environ={})


def propose(loaded: LoadedSettings, answer: str, machine: Machine = BIG) -> str | None:
    return propose_model(
        loaded, is_terminal=lambda: True, ask=lambda question: answer, machine=lambda: machine
    )


@pytest.mark.parametrize(("answer", "source"), [("y", SOURCE), ("", None), ("n", None)])
def test_nothing_is_downloaded_unless_the_user_agrees(
    loaded: LoadedSettings, answer: str, source: str | None
) -> None:
    assert propose(loaded, answer) == source


def test_question_names_size_and_licence(loaded: LoadedSettings) -> None:
    asked: list[str] = []
    propose_model(
        loaded,
        is_terminal=lambda: True,
        ask=lambda question: asked.append(question) or "",
        machine=lambda: BIG,
    )
    assert "gpt-oss-20b (Apache-2.0" in asked[0]
    assert "Download 12.1 GB" in asked[0]


def test_small_machines_and_named_models_are_not_asked(loaded: LoadedSettings) -> None:
    assert propose(loaded, "y", SMALL) is None
    named = load({"models": ["m=/m.gguf"]}, environ={})
    assert propose(named, "y") is None


def test_without_a_terminal_the_start_report_names_the_model(loaded: LoadedSettings) -> None:
    assert propose_model(loaded, is_terminal=lambda: False, machine=lambda: BIG) is None
    assert f"serve {SOURCE}" in str(suggestion(loaded, lambda: BIG))
    assert suggestion(loaded, lambda: SMALL) is None
