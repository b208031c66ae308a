"""The laws of parsers for broken outputs: the corpus and mutations of it.

``make fuzz`` checks many more mutations.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import campaign
from tests.fuzz.laws import TRACERS, check_laws
from tests.fuzz.mutations import EDGES, mutate
from tests.fuzz.parsers import CORPUS, TARGETS, Target
from tests.hypothesis_settings import examples, is_fuzz

#: Outputs of the campaign that every run checks.
SHARE = 500


@pytest.mark.hypothesis
@pytest.mark.requirement("FM-FUZZ", "D-12", "API-CALL-FORMATS")
@pytest.mark.parametrize("name", TARGETS)
def test_corpus_obeys_laws(name: str) -> None:
    """A format has two targets. An output is checked with one of them, by turns; `make fuzz` checks
    it with both.
    """
    target = TARGETS[name]
    first, step = (0, 1) if is_fuzz() or name == "harmony" else (name.endswith("-special"), 2)
    for text in target.seeds[first::step]:
        size = len(text)
        check_laws(target, text, (size // 2,), thinking=size % 2 == 0)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Target, str, list[int], bool]:
    """Draw an output of the corpus with parts removed, doubled, moved and inserted."""
    target = TARGETS[draw(st.sampled_from(sorted(TARGETS)))]
    text = draw(st.sampled_from(target.seeds))
    words = st.sampled_from([*target.words, *EDGES])
    for _ in range(draw(st.integers(1, 6))):
        a, b = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        b = min(b, a + 80)
        kind = draw(st.sampled_from(("remove", "double", "insert", "splice", "swap")))
        if kind == "remove":
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
@examples(30)
@given(mutations())
def test_drawn_mutations_obey_laws(mutated: tuple[Target, str, list[int], bool]) -> None:
    target, text, cuts, thinking = mutated
    check_laws(target, text, cuts, thinking=thinking)


@pytest.mark.requirement("FM-FUZZ", "FM-NO-LOSS")
def test_seeded_mutations_lose_no_text() -> None:
    assert campaign.run(0, SHARE, float("inf")).failures == {}


def test_seed_always_gives_the_same_output() -> None:
    assert mutate(7) == mutate(7)
    assert mutate(7).text != mutate(8).text


def test_campaign_stops_at_its_time_limit() -> None:
    times = iter(range(100))
    figures = campaign.run(0, 50, 3, clock=lambda: float(next(times)))
    assert figures.outputs == 3


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_corpus_contains_a_tracer(name: str) -> None:
    target = TARGETS[name]
    assert not set(TRACERS) & set("".join((*target.seeds, *target.tokenizer.special)))


def test_every_corpus_file_belongs_to_a_target() -> None:
    names = {name.rpartition("-")[0] or name for name in TARGETS}
    assert {path.stem for path in CORPUS.glob("*.txt")} <= names
