"""Which items are dropped from a conversation that is too long."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.truncation import shorten_conversation
from antiphon.inference.conversation import Conversation
from antiphon.wire import items as it


def message(role: str, id: str) -> it.Message:
    return it.Message(id=id, role=role, content=())  # type: ignore[arg-type]


def call(id: str, call_id: str) -> it.FunctionCall:
    return it.FunctionCall(id=id, call_id=call_id, name="f", arguments="{}")


def output(id: str, call_id: str) -> it.FunctionCallOutput:
    return it.FunctionCallOutput(id=id, call_id=call_id, output="")


def remaining_ids(items: Sequence[it.Item], room: int) -> tuple[list[str], tuple[str, ...]] | None:
    """The remaining and the dropped ids if ``room`` items fit."""
    found = shorten_conversation(
        Conversation(items=tuple(items)),
        lambda shorter: shorter.items,
        lambda rest: len(rest) <= room,
    )
    return None if found is None else ([item.id for item in found[0]], found[1])


TALK = (
    message("system", "s"),
    message("user", "u1"),
    it.Reasoning(id="r"),
    call("c1", "a"),
    call("c2", "b"),
    output("o2", "b"),
    output("o1", "a"),
    message("assistant", "m"),
    message("user", "u2"),
    call("c3", "c"),
    output("o3", "c"),
)


def test_drops_oldest_groups_first() -> None:
    assert remaining_ids(TALK, 10) == (["s", *[i.id for i in TALK[2:]]], ("u1",))
    rest = ["s", "c2", "o2", "m", "u2", "c3", "o3"]
    assert remaining_ids(TALK, 9) == remaining_ids(TALK, 7) == (rest, ("u1", "r", "c1", "o1"))
    assert remaining_ids(TALK, 5) == (
        ["s", "m", "u2", "c3", "o3"],
        ("u1", "r", "c1", "c2", "o2", "o1"),
    )


def test_preserves_system_messages_and_last_user_message() -> None:
    found = remaining_ids(TALK, 2)
    assert found is not None and found[0] == ["s", "u2"]
    assert remaining_ids(TALK, 1) is None


def test_preserves_declared_tools() -> None:
    items = (it.AdditionalTools(id="t", tools=()), message("user", "u1"), message("user", "u2"))
    assert remaining_ids(items, 2) == (["t", "u2"], ("u1",))


KINDS = st.sampled_from(("user", "assistant", "system", "call", "reasoning"))


@given(st.lists(KINDS, max_size=20), st.integers(0, 30))
def test_drops_as_few_items_as_needed_and_whole_calls(kinds: list[str], room: int) -> None:
    items: list[it.Item] = []
    for n, kind in enumerate(kinds):
        if kind == "call":
            items += [call(f"c{n}", f"{n}"), output(f"o{n}", f"{n}")]
        elif kind == "reasoning":
            items.append(it.Reasoning(id=f"r{n}"))
        else:
            items.append(message(kind, f"{kind}{n}"))
    found = remaining_ids(items, room)
    if found is None:
        return
    stayed, dropped = found
    assert len(stayed) <= room and sorted([*stayed, *dropped]) == sorted(i.id for i in items)
    assert {id[1:] for id in stayed if id[0] == "c"} == {id[1:] for id in stayed if id[0] == "o"}
    last_user = next((i.id for i in reversed(items) if i.id.startswith("user")), None)
    assert last_user is None or last_user in stayed
