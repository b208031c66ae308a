"""Options of a request, the echo in the response, and the visible tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.errors import InvalidRequest
from antiphon.runs.request.initial_response import initial_response
from antiphon.runs.request.options import apply_defaults, build_options
from antiphon.runs.request.tool_selection import select_tools
from antiphon.tools.unavailable_tool import UnavailableTool
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.request import CreateResponse

FUNCTION = {"type": "function", "name": "f"}
SECRET = {
    "type": "mcp",
    "server_label": "s",
    "server_url": "https://mcp.example",
    "authorization": "canary",
    "headers": {"x-key": "canary"},
}


def create_request(**fields: Any) -> CreateResponse:
    return parse_create_response(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def test_unavailable_hosted_tools_are_ignored_and_reported() -> None:
    request = create_request(tools=[FUNCTION, {"type": "web_search"}, {"type": "web_search"}])
    visible = select_tools(request, "ignore")
    assert [tool.__struct_config__.tag for tool in visible.visible_tools] == ["function"]
    assert [each.type for each in visible.ignored_tools] == ["web_search"]


def test_only_the_named_tools_are_asked_whether_they_work() -> None:
    class Slow(UnavailableTool):
        asked = 0

        def unavailable_reason(self) -> str | None:
            self.asked += 1
            return super().unavailable_reason()

    web, images = Slow("There is no index."), Slow("There is no generator.")
    providers = {"web_search": web, "image_generation": images}
    select_tools(create_request(tools=[FUNCTION]), "ignore", providers)
    assert (web.asked, images.asked) == (0, 0)
    request = create_request(tools=[FUNCTION, {"type": "web_search"}])
    (ignored,) = select_tools(request, "ignore", providers).ignored_tools
    assert (ignored.type, ignored.reason) == ("web_search", "There is no index.")
    assert images.asked == 0


def test_unavailable_hosted_tools_can_be_rejected() -> None:
    with pytest.raises(InvalidRequest) as refused:
        select_tools(create_request(tools=[FUNCTION, {"type": "web_search"}]), "refuse")
    assert refused.value.param == "tools[1]"


def test_forced_unavailable_tool_is_rejected() -> None:
    request = create_request(tools=[{"type": "web_search"}], tool_choice={"type": "web_search"})
    with pytest.raises(InvalidRequest) as refused:
        select_tools(request, "ignore")
    assert refused.value.param == "tool_choice"


def test_logprobs_require_include() -> None:
    include = ["message.output_text.logprobs"]
    assert build_options(create_request(top_logprobs=3)).logprobs is None
    assert build_options(create_request(include=include)).logprobs == 0
    assert build_options(create_request(include=include, top_logprobs=3)).logprobs == 3


@pytest.mark.requirement("VN-2")
def test_response_echoes_effective_options() -> None:
    request = apply_defaults(create_request(top_p=0.5), {"temperature": 0.2, "top_p": 0.9})
    response = initial_response(request, id="resp_1", model="m", created_at=1)
    assert (response.temperature, response.top_p) == (0.2, 0.5)
    assert (build_options(request).temperature, build_options(request).top_p) == (0.2, 0.5)


def test_missing_options_get_openais_defaults() -> None:
    request = apply_defaults(create_request(), {})
    assert (request.temperature, request.top_p) == (1.0, 1.0)


def test_secrets_are_not_echoed() -> None:
    response = initial_response(
        create_request(tools=[SECRET]), id="resp_1", model="m", created_at=1
    )
    assert "canary" not in str(response)
    assert "mcp.example" in str(response)


def test_non_nullable_fields_are_echoed_only_if_set() -> None:
    import msgspec

    bare = msgspec.to_builtins(initial_response(create_request(), id="r", model="m", created_at=1))
    given = msgspec.to_builtins(
        initial_response(create_request(user="u"), id="r", model="m", created_at=1)
    )
    assert "user" not in bare
    assert given["user"] == "u"
