"""The rows of ``KINDS`` agree with the wire types and with each other."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from msgspec.structs import fields

from antiphon.stream.kinds import KINDS, OPEN_RESPONSES_KINDS, ItemKind, error_fields
from antiphon.wire import items as it
from antiphon.wire.tags import tag_of

ROWS = [pytest.param(cls, kind, id=str(cls.__struct_config__.tag)) for cls, kind in KINDS.items()]


def statuses(cls: type[it.ItemBase]) -> tuple[str, ...]:
    return get_args(get_type_hints(cls).get("status"))


def test_every_item_type_has_a_row() -> None:
    assert set(KINDS) == set(it.INPUT_ITEMS) == set(OPEN_RESPONSES_KINDS)


def test_id_prefixes_are_unique() -> None:
    prefixes = [kind.prefix for kind in KINDS.values()]
    assert len(prefixes) == len(set(prefixes))


@pytest.mark.parametrize(("cls", "kind"), ROWS)
def test_can_fail_means_that_failed_is_a_legal_status(
    cls: type[it.ItemBase], kind: ItemKind
) -> None:
    assert kind.can_fail == ("failed" in statuses(cls))


@pytest.mark.parametrize(("cls", "kind"), ROWS)
def test_columns_name_fields_of_the_item(cls: type[it.ItemBase], kind: ItemKind) -> None:
    named = {*kind.incomplete_fields, *kind.appended_fields.values()} | {kind.parts_field} - {""}
    named |= {kind.error.name} if kind.error is not None else set()
    named |= {text.list_field if text.part else text.field for text in kind.channels.values()}
    assert named <= {field.name for field in fields(cls)}


@pytest.mark.parametrize(("cls", "kind"), ROWS)
def test_columns_of_a_row_are_consistent(cls: type[it.ItemBase], kind: ItemKind) -> None:
    assert kind.runs_here or not kind.counts_as_call
    assert not (kind.runs_here and kind.written_by_model)
    assert not kind.omits_direct_caller or "caller" in cls.__struct_fields__


def test_every_output_answers_a_call_and_every_named_call_has_an_output() -> None:
    answers = {cls: kind.answers for cls, kind in KINDS.items() if kind.answers is not None}
    outputs = {cls for cls in KINDS if str(cls.__struct_config__.tag).endswith("_output")}
    assert set(answers) == outputs
    assert {cls for cls, kind in KINDS.items() if kind.call_name} <= set(answers.values())
    for output, call in answers.items():
        assert str(output.__struct_config__.tag).startswith(
            str(call.__struct_config__.tag).removesuffix("_call")
        )


def test_error_fields_of_each_kind() -> None:
    call = it.McpCall(server_label="s", name="f", arguments="{}")
    assert error_fields(call, "Down.")["error"]["message"] == "Down."
    image = error_fields(it.ImageGenerationCall(), "Down.")
    assert image["error"]["code"] == "image_generation_failed"
    shell = it.ShellCallOutput(call_id="c", output=({"stdout": "a"},))
    before, last = error_fields(shell, "Down.")["output"]
    assert before == {"stdout": "a"}
    assert last["stderr"] == "Down."
    assert error_fields(it.McpListTools(server_label="s", tools=()), "Down.") == {"error": "Down."}
    assert error_fields(it.WebSearchCall(), "Down.") == {}


def test_outputs_are_known_by_their_type() -> None:
    """The base class of items, which knows no table, tells an output by the end of its type."""
    outputs = {cls for cls, kind in KINDS.items() if kind.answers is not None}
    assert outputs == {cls for cls in KINDS if tag_of(cls).endswith("_output")}
