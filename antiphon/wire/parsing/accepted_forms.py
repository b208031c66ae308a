"""Values that clients may send although the wire types do not describe them. For example, ``input``
may be a string instead of an array of items.

The parsers normalize these values to the wire types. The OpenAPI document describes requests with
these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.request import CompactRequest, CreateResponse, InputTokensRequest
from antiphon.wire.resources.conversations import Metadata
from antiphon.wire.response import ConversationRef

_Input = str | tuple[it.Item, ...] | it.Item
_Text = Annotated[str, Meta(min_length=1, max_length=256)]
_Conversation = str | ConversationRef
_Bias = Annotated[float, Meta(ge=-100, le=100)]

#: (class, field) → the type of the values that clients may send in this field.
ACCEPTED_FORMS: Mapping[tuple[type[Struct], str], Any] = {
    (CreateResponse, "input"): _Input,
    (CreateResponse, "stop"): _Text | Annotated[tuple[_Text, ...], Meta(max_length=16)],
    (CreateResponse, "conversation"): _Conversation,
    (CreateResponse, "generation_config"): str | JsonObject,
    (CreateResponse, "previous_input_messages"): tuple[JsonObject, ...],
    (CreateResponse, "metadata"): Metadata,
    (CreateResponse, "logit_bias"): dict[str, _Bias],
    (InputTokensRequest, "input"): _Input,
    (InputTokensRequest, "conversation"): _Conversation,
    (CompactRequest, "input"): _Input,
    # Gateways invent their own types of annotations.
    (it.OutputText, "annotations"): tuple[JsonObject, ...],
    (it.Message, "role"): Literal["user", "assistant", "system", "developer"],
    (it.Message, "content"): str | tuple[it.Part, ...],
    (it.Reasoning, "content"): tuple[it.ReasoningText | it.PlainText, ...],
    (it.Reasoning, "summary"): tuple[it.SummaryText | it.PlainText, ...],
}

#: Items whose ``type`` may be missing.
UNTAGGED: tuple[type[it.Item], ...] = (it.Message, it.ItemReference)
