"""Treatment of request fields: each has one, and errors name the refused field."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from antiphon.errors import InvalidRequest
from antiphon.wire import tools as tl
from antiphon.wire.request import (
    FIELDS,
    INCLUDES,
    CreateResponse,
    FieldTreatment,
    InputTokensRequest,
    refuse_unsupported,
)
from antiphon.wire.request_options import ImageOptions, MultiAgent
from antiphon.wire.response import ConversationRef, ReasoningConfig

#: A value that asks for something, for every field that could be refused.
ASKING: dict[str, Any] = {
    "conversation": ConversationRef(id="conv_1"),
    "prompt": {"id": "pmpt_1"},
    "background": True,
    "context_management": ({"type": "compaction", "compact_threshold": 1000},),
    "image": ImageOptions(context_compression="enabled"),
    "multi_agent": MultiAgent(enabled=True),
    "skip_special_tokens": False,
}
REFUSED = [name for name, treatment in FIELDS.items() if treatment == "refused"]


def test_every_field_has_a_treatment() -> None:
    assert {*FIELDS, "hints", "ignored_fields"} == set(CreateResponse.__struct_fields__)
    assert set(FIELDS.values()) <= set(get_args(FieldTreatment))


@pytest.mark.parametrize("name", REFUSED)
def test_error_names_the_refused_field(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(CreateResponse(**{name: ASKING[name]}))
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert caught.value.message == (
        f"Unsupported parameter: '{name}' is not supported by this server."
    )


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (CreateResponse(reasoning=ReasoningConfig(mode="pro")), "reasoning.mode"),
    ],
)
def test_error_names_the_refused_part_of_a_field(request_: CreateResponse, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsupported(request_)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    "request_",
    [
        CreateResponse(),
        CreateResponse(background=False, context_management=()),
        CreateResponse(image=ImageOptions()),
        CreateResponse(multi_agent=MultiAgent()),
        CreateResponse(image=ImageOptions(context_compression="disabled")),
        CreateResponse(reasoning=ReasoningConfig(mode="standard")),
        CreateResponse(tools=(tl.Function(name="f", async_=False),)),
        CreateResponse(client_metadata={"a": 1}, user="u", service_tier="flex"),
    ],
)
def test_values_without_effect_are_accepted(request_: CreateResponse) -> None:
    refuse_unsupported(request_)


def test_includes_are_eight_distinct_values() -> None:
    assert len(INCLUDES) == len(set(INCLUDES)) == 8


def test_token_count_converts_to_a_request() -> None:
    counted = InputTokensRequest(model="m", instructions="i", personality="friendly")
    assert counted.as_create() == CreateResponse(model="m", instructions="i")
