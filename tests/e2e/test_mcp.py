"""MCP servers configured by the operator and given by requests, through the official client."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.test_tiny_tools import MODEL
from tests.harness import ServerSetup
from tests.tools.mcp.process import TOYS, Toys

pytestmark = pytest.mark.e2e

SETTINGS = f"""
mcp.allowed_networks = ["127.0.0.1"]

[mcp.servers.toys]
command = "{sys.executable}"
args = ["{TOYS}", "stdio"]
"""


@pytest.fixture(scope="module")
def server_setup() -> ServerSetup:
    pytest.importorskip("xllamacpp")
    model = f'[models.tiny]\nsource = "{MODEL}"\nthreads = 1\ncontext_size = 2048\n'
    return ServerSetup(settings=SETTINGS, model=model)


def ask(client: OpenAI, tool: dict[str, Any], **more: Any) -> Any:
    body: Any = {
        "type": "mcp",
        "allowed_tools": ["add"],
        "require_approval": "never",
        **tool,
    }
    choice: Any = {"type": "mcp", "server_label": tool["server_label"], "name": "add"}
    return client.responses.create(
        **{
            "model": "tiny",
            "input": "What is 17 plus 25?",
            "tools": [body],
            "tool_choice": choice,
            "max_output_tokens": 300,
            "temperature": 0,
            **more,
        }
    )


def called(answer: Any) -> Any:
    (call,) = [item for item in answer.output if item.type == "mcp_call"]
    return call


def test_configured_server_is_found_by_its_label(client: OpenAI) -> None:
    answer = ask(client, {"server_label": "toys"})
    assert answer.output[0].type == "mcp_list_tools"
    assert called(answer).status == "completed" and called(answer).output.lstrip("-").isdigit()
    assert answer.status == "completed"


def test_real_model_calls_a_tool(client: OpenAI) -> None:
    """The example of docs/mcp.md."""
    answer = ask(client, {"server_label": "toys"}, input="Add 4 and 4.", tool_choice="auto")
    assert (called(answer).arguments, called(answer).output) == ('{"a": 4, "b": 4}', "8")
    assert answer.output_text == "4 plus 4 is 8."


def test_server_given_by_the_request(client: OpenAI, toys: Toys) -> None:
    answer = ask(client, {"server_label": "mine", "server_url": toys.url})
    assert called(answer).status == "completed" and toys.log[-1].startswith("add ")


def test_stream_ends_with_an_approval_request(client: OpenAI, toys: Toys) -> None:
    tool = {"server_label": "mine", "server_url": toys.url, "require_approval": "always"}
    events = list(ask(client, tool, stream=True))
    first = events[-1].response
    request = first.output[-1]
    assert request.type == "mcp_approval_request" and first.status == "completed"
    before = len(toys.log)
    allowed = {
        "type": "mcp_approval_response",
        "approval_request_id": request.id,
        "approve": True,
    }
    second = ask(client, tool, previous_response_id=first.id, input=[allowed], tool_choice="none")
    assert called(second).approval_request_id == request.id
    assert called(second).arguments == request.arguments and len(toys.log) == before + 1


def test_unknown_label_or_tool_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        ask(client, {"server_label": "unknown"})
    assert refused.value.param == "tools[0].server_url"
