"""Small answers, as the official client reads them."""

from __future__ import annotations

import msgspec
import pytest
from openai.types.conversations import ConversationDeletedResource, ConversationItemList
from openai.types.responses import ResponseItemList
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import BaseModel

from antiphon.wire.pagination import Deleted, InputTokensCount, Page
from antiphon.wire.parsing.requests import read_items
from tests.wire.samples import OUTPUTS

PAGE = Page(
    data=read_items(list(OUTPUTS.values()), "data"),
    first_id="msg_1",
    last_id="po_1",
    has_more=True,
)


@pytest.mark.parametrize("model", [ResponseItemList, ConversationItemList])
def test_a_page_reads_as_the_sdks_own(model: type[BaseModel]) -> None:
    read = model.model_validate_json(msgspec.json.encode(PAGE))
    assert [item.type for item in read.data] == [  # type: ignore[attr-defined]
        str(item.__struct_config__.tag) for item in PAGE.data
    ]


def test_an_empty_page_has_no_ends() -> None:
    empty = Page(data=(), first_id=None, last_id=None, has_more=False)
    assert msgspec.json.decode(msgspec.json.encode(empty)) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_a_deletion_and_a_count_read_as_the_sdks_own() -> None:
    gone = Deleted(id="conv_1", object="conversation.deleted")
    ConversationDeletedResource.model_validate_json(msgspec.json.encode(gone), strict=True)
    count = InputTokensCount(input_tokens=7)
    read = InputTokenCountResponse.model_validate_json(msgspec.json.encode(count), strict=True)
    assert read.input_tokens == 7
