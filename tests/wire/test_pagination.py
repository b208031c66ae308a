"""List pages, deletions and counts: the official client parses them."""

from __future__ import annotations

import msgspec
import pytest
from openai.types.conversations import ConversationDeletedResource, ConversationItemList
from openai.types.responses import ResponseItemList
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import BaseModel

from antiphon.wire.pagination import DeletedObject, InputTokensCount, Page
from antiphon.wire.parsing.requests import read_items
from tests.wire.samples import FOREIGN, OUTPUTS

PAGE = Page(
    data=read_items([raw for tag, raw in OUTPUTS.items() if tag not in FOREIGN], "data"),
    first_id="msg_1",
    last_id="po_1",
    has_more=True,
)


@pytest.mark.parametrize("model", [ResponseItemList, ConversationItemList])
def test_page_is_parsed_by_the_sdk(model: type[BaseModel]) -> None:
    read = model.model_validate_json(msgspec.json.encode(PAGE))
    assert [item.type for item in read.data] == [  # type: ignore[attr-defined]
        str(item.__struct_config__.tag) for item in PAGE.data
    ]


def test_empty_page_has_no_first_and_last_id() -> None:
    empty = Page(data=(), first_id=None, last_id=None, has_more=False)
    assert msgspec.json.decode(msgspec.json.encode(empty)) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_deletion_and_count_are_parsed_by_the_sdk() -> None:
    deleted = DeletedObject(id="conv_1", object="conversation.deleted")
    ConversationDeletedResource.model_validate_json(msgspec.json.encode(deleted), strict=True)
    count = InputTokensCount(input_tokens=7)
    read = InputTokenCountResponse.model_validate_json(msgspec.json.encode(count), strict=True)
    assert read.input_tokens == 7
