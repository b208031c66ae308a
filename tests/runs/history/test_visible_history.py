"""The visible history: laws that hold for every conversation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequest
from antiphon.resources.input_items import check_call_outputs
from antiphon.runs.history.encrypted_items import CompactedHistory, TenantSealer
from antiphon.runs.history.visible_history import (
    VisibleHistory,
    build_visible_history,
    estimate_tokens,
)
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.wire import items as it

SEALED = TenantSealer(Encryptor([EncryptionKey(id="a", secret=b"a" * 32)]), "t")
ROOM = 200
TRIGGER = it.CompactionTrigger()


def said(role: Any, text: str) -> it.Message:
    return it.Message(role=role, content=(it.InputText(text=text),))


@st.composite
def conversations(draw: st.DrawFn) -> list[it.Item]:
    """Every call has its output somewhere after it; a few calls wait."""
    items: list[it.Item] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["user", "assistant", "developer", "call", "output", "think"]))
        text = f"{number} " + "x" * draw(st.sampled_from([0, 30, 400]))
        if kind == "call":
            waiting.append(f"c{number}")
            items.append(it.FunctionCall(call_id=waiting[-1], name="f", arguments="{}"))
        elif kind == "output" and waiting:
            id = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            items.append(it.FunctionCallOutput(call_id=id, output=text))
        elif kind == "think":
            items.append(it.Reasoning(content=(it.ReasoningText(text=text),)))
        else:
            items.append(said("user" if kind == "output" else kind, text))
    return items


def visible_items(items: list[it.Item] | tuple[it.Item, ...]) -> VisibleHistory:
    return build_visible_history((), items, SEALED, user_token_budget=ROOM, refuse=True)


def outputs(items: list[it.Item]) -> list[it.Item]:
    """Return an output for each call that waits."""
    answered = {i.call_id for i in items if isinstance(i, it.FunctionCallOutput)}
    return [
        it.FunctionCallOutput(call_id=item.call_id, output="late")
        for item in items
        if isinstance(item, it.FunctionCall) and item.call_id not in answered
    ]


@given(conversations())
def test_everything_is_visible_without_compaction(items: list[it.Item]) -> None:
    assert visible_items(items).items == tuple(items)


@given(conversations(), st.sampled_from([0, 60, 300, 10_000]), st.booleans())
def test_compaction_does_not_separate_calls_from_outputs(
    items: list[it.Item], rest: int, kept_by_client: bool
) -> None:
    now = visible_items(items).compact("sum", keep_tokens=rest)
    check_call_outputs(now.items)
    assert now.compaction is not None
    item = it.Compaction(encrypted_content=SEALED.encrypt_compaction(now.compaction))
    before = items if kept_by_client else []
    later = visible_items([*before, item, *outputs(items), said("user", "go on")])
    check_call_outputs(later.items)
    late = [i for i in later.items if isinstance(i, it.FunctionCallOutput) and i.output == "late"]
    assert len(late) == len(outputs(items))
    assert later.items[-1] == said("user", "go on")


@given(conversations(), st.sampled_from([0, 60, 300]))
def test_visible_items_are_limited_and_in_order(items: list[it.Item], rest: int) -> None:
    now = visible_items(items).compact("sum", keep_tokens=rest)
    left = [items.index(item) for item in now.items if item in items]
    result = next(at for at, item in enumerate(now.items) if "compacted" in repr(item))
    assert left[:result] == sorted(left[:result]) and left[result:] == sorted(left[result:])
    assert len(set(left)) == len(left)
    past = now.compaction or CompactedHistory()
    users = [item for item in past.user_messages if isinstance(item, it.Message)]
    assert sum(map(estimate_tokens, users[:-1])) <= ROOM
    unasked = [item for item in past.recent_items if not isinstance(item, it.FunctionCall)]
    assert sum(map(estimate_tokens, unasked)) <= rest
    instructions = [
        item for item in items if isinstance(item, it.Message) and item.role == "developer"
    ]
    assert [item for item in now.items if item in instructions] == instructions
    everything = {
        *map(repr, now.items),
        *map(repr, visible_items(items).items_to_summarize(keep_tokens=rest)),
    }
    assert all(repr(i) in everything for i in items if isinstance(i, it.FunctionCallOutput))


@given(conversations(), conversations())
def test_second_compaction_retains_the_latest_user_messages(
    first: list[it.Item], second: list[it.Item]
) -> None:
    """The client does not send the earlier items."""
    for number, items in enumerate((first, second)):
        for item in outputs(items):
            items.append(item)
        items.append(said("user", f"last {number}"))
    one = it.Compaction(
        encrypted_content=SEALED.encrypt_compaction(_past(visible_items(first).compact("1")))
    )
    two = visible_items([one, *_renamed(second)]).compact("2")
    texts = [part.text for i in two.items if isinstance(i, it.Message) for part in i.content]  # type: ignore[union-attr]
    assert "last 1" in texts
    assert (
        "last 0" in texts
        or sum(estimate_tokens(i) for i in second if isinstance(i, it.Message)) > ROOM
    )


def _past(recalled: VisibleHistory) -> CompactedHistory:
    assert recalled.compaction is not None
    return recalled.compaction


def _renamed(items: list[it.Item]) -> list[it.Item]:
    """With call ids of their own."""
    from msgspec.structs import replace

    return [
        replace(i, call_id=f"second_{i.call_id}")
        if isinstance(i, it.FunctionCall | it.FunctionCallOutput)
        else i
        for i in items
    ]


def test_images_are_left_out_of_a_compaction_that_is_too_long() -> None:
    picture = it.InputImage(image_url="data:image/png;base64," + "A" * 13_000_000)
    text = it.InputText(text="what is this?")
    message = it.Message(role="user", content=(text, picture))
    small = it.Message(role="user", content=(text, it.InputImage(image_url="data:,x")))
    for given_, remaining in ((message, (text,)), (small, small.content)):
        past = SEALED.decrypt_compaction(
            SEALED.encrypt_compaction(CompactedHistory(user_messages=(given_,), summary="s"))
        )
        assert past.user_messages[0].content == remaining  # type: ignore[union-attr]


CALLER = it.ProgramCaller("p")
PROGRAM: list[it.Item] = [
    said("user", "x" * 4000),
    it.Program(id="prg", call_id="p", code="…", fingerprint="f"),
    it.McpCall(id="m", server_label="s", name="f", arguments="{}", output="done", caller=CALLER),
    it.FunctionCall(id="f1", call_id="c1", name="g", arguments="{}", caller=CALLER),
    it.FunctionCallOutput(id="o1", call_id="c1", output="one", caller=CALLER),
    it.FunctionCall(id="f2", call_id="c2", name="g", arguments="{}", caller=CALLER),
]
ANSWER = it.FunctionCallOutput(id="o2", call_id="c2", output="two", caller=CALLER)


def test_open_program_survives_a_compaction_with_its_calls() -> None:
    compacted = visible_items(PROGRAM).compact("In short.")
    past = compacted.compaction
    assert past is not None and list(past.recent_items) == PROGRAM[1:]
    sealed = it.Compaction(id="cmp", encrypted_content=SEALED.encrypt_compaction(past))
    later = visible_items([*PROGRAM, sealed, ANSWER])
    assert list(later.items)[-6:] == [*PROGRAM[1:], ANSWER]
    check_call_outputs(later.items)
    replayed = visible_items([sealed, *PROGRAM[1:], ANSWER])
    assert [item.id for item in replayed.items].count("m") == 1


def test_unanswered_program_is_not_visible_after_a_compaction() -> None:
    past = visible_items(PROGRAM).compact("In short.").compaction
    assert past is not None
    sealed = it.Compaction(id="cmp", encrypted_content=SEALED.encrypt_compaction(past))
    later = visible_items([sealed, said("user", "Never mind.")]).items
    assert all(isinstance(item, it.Message) for item in later)
    check_call_outputs(later)


@pytest.mark.parametrize("past", [(), (TRIGGER,), (TRIGGER, TRIGGER)])
def test_error_names_the_index_of_an_item_after_triggers(past: tuple[it.Item, ...]) -> None:
    """Triggers are not part of the visible history."""
    foreign = it.Reasoning(summary=(), encrypted_content="x")
    with pytest.raises(InvalidRequest) as refusal:
        build_visible_history(past, (TRIGGER, foreign), SEALED, user_token_budget=ROOM, refuse=True)
    assert refusal.value.param == "input[1].encrypted_content"
