"""Replies no model should write: the corpus, and, for longer in ``make fuzz``, mutations of it.

However a reply is cut means the same; nothing raises; what comes out is well formed; and of a reply
that was cut short nothing is given out as whole that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dialects.replies import items, read
from tests.fuzz.parsers import CORPUS, TARGETS, Target

_EDGES = (
    "",
    "\x00",
    "\ufeff",
    "\u2028",
    "\ud7ff",
    "😀",
    "\r\n",
    "\\ud83d",
    "9" * 40,
    '"' * 3,
    "\\",
)


def obeys(target: Target, text: str, cuts: Sequence[int], *, thinking: bool) -> None:
    """The laws of ``dialects.base.Parser``."""
    ids = target.tokenizer.encode(text, special=True)
    at = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    chunks = [ids[a:b] for a, b in pairwise(at)]
    whole = read(target.make(thinking), [ids])
    assert read(target.make(thinking), ([token] for token in ids)) == whole
    assert read(target.make(thinking), chunks) == whole
    found, is_open = items(whole)
    assert not is_open
    for item in found:
        for said in item.values():
            said.encode()  # never half a character
    for cut in at[1:]:
        early, is_open = items(read(target.make(thinking), [ids[:cut]], "length"))
        closed = _calls(early[:-1] if is_open else early)
        assert closed == _calls(found)[: len(closed)], "a call was given out before its end"


def _calls(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in found if "arguments" in item]


@pytest.mark.requirement("FM-FUZZ", "D-12", "API-CALL-FORMATS")
@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    target = TARGETS[name]
    for text in target.seeds:
        size = len(text)
        obeys(target, text, (size // 2,), thinking=size % 2 == 0)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Target, str, list[int], bool]:
    """A reply of the corpus with parts taken out, doubled, moved, and put in from others."""
    target = TARGETS[draw(st.sampled_from(sorted(TARGETS)))]
    text = draw(st.sampled_from(target.seeds))
    words = st.sampled_from([*target.words, *_EDGES])
    for _ in range(draw(st.integers(1, 6))):
        a, b = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        b = min(b, a + 80)
        kind = draw(st.sampled_from(("cut", "double", "insert", "splice", "swap")))
        if kind == "cut":
            text = text[:a] + text[b:]
        elif kind == "double":
            text = text[:b] + text[a:]
        elif kind == "insert":
            text = text[:a] + draw(words) + text[a:]
        elif kind == "splice":
            other = draw(st.sampled_from(target.seeds))
            text = text[:a] + other[draw(st.integers(0, len(other))) :]
        else:
            text = text[:a] + text[b:] + text[a:b]
        text = text[:2000]
    cuts = draw(st.lists(st.integers(0, 4000), max_size=5))
    return target, text, cuts, draw(st.booleans())


@pytest.mark.requirement("FM-FUZZ")
@settings(deadline=None)
@given(mutations())
def test_mutations(mutated: tuple[Target, str, list[int], bool]) -> None:
    target, text, cuts, thinking = mutated
    obeys(target, text, cuts, thinking=thinking)


def test_every_file_of_the_corpus_is_of_a_target() -> None:
    names = {name.rpartition("-")[0] or name for name in TARGETS}
    assert {path.stem for path in CORPUS.glob("*.txt")} == names
