"""MCP labels that select a tool of this server, and server tools for every model."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.runs.request.mcp_labels import replace_mcp_labels
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire.parsing.requests import parse_create_response
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.scripts import call, message_deltas
from tests.conformance.server import Ask, engine, local
from tests.conformance.test_hosted import with_namespace
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.golden.models import MODELS

LABELS = {"code_interpreter": "code_interpreter", "container": "shell", "browser": "web_search"}


def labelled_tool(label: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "mcp",
        "server_label": label,
        "server_url": "http://localhost:8888",
        "require_approval": "never",
        **more,
    }


@pytest.mark.requirement("VO-3")
@pytest.mark.parametrize("forced", [True, False])
async def test_mcp_label_can_select_a_server_tool(serve: Serve, ask: Ask, forced: bool) -> None:
    scripted_engine = engine([tool_call("python", {"input": "say hello"}), "It said hello."])
    server = serve(
        local(scripted_engine), mcp_labels=LABELS, **code_interpreter_options(containers())
    )
    chosen = {"tool_choice": {"type": "mcp", "server_label": "code_interpreter"}} if forced else {}
    answer = await ask(server, tools=[labelled_tool("code_interpreter")], **chosen)
    ran, _ = answer.output
    assert (ran["type"], ran["code"]) == ("code_interpreter_call", "say hello")
    assert answer.text == "It said hello." and "hello" in rendered_prompts(server)[1]
    assert answer.terminal_response["tools"][0]["type"] == "mcp"  # as it was asked for
    constraint = scripted_engine.requests[0][1].constraint
    assert (constraint is not None and constraint.needed) == forced


async def test_other_labels_are_mcp_servers(serve: Serve, ask_foreground: Ask) -> None:
    server = serve(mcp_labels=LABELS)
    answer = await ask_foreground(
        server, tools=[labelled_tool("elsewhere"), labelled_tool("browser")]
    )
    assert answer.headers["x-antiphon-ignored-tools"] == "mcp, web_search"


@pytest.mark.parametrize(
    ("field", "value"), [("require_approval", "always"), ("allowed_tools", ["search"])]
)
async def test_mcp_only_fields_are_rejected_for_server_tools(
    serve: Serve, ask_foreground: Ask, field: str, value: Any
) -> None:
    server = serve(mcp_labels=LABELS, **code_interpreter_options(containers()))
    request = labelled_tool("code_interpreter", **{field: value})
    rejection = (await ask_foreground(server, tools=[request])).rejection
    assert (rejection["http"], rejection["param"]) == (400, f"tools[0].{field}")


def test_allowed_tools_follow_the_label() -> None:
    request = parse_create_response(
        b"""{"model": "m", "input": "hi", "tools": [
            {"type": "mcp", "server_label": "browser", "server_url": "http://x/"},
            {"type": "function", "name": "f"}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
                {"type": "mcp", "server_label": "browser"}, {"type": "function", "name": "f"}]}}"""
    )
    choice: Any = replace_mcp_labels(request, LABELS).tool_choice
    assert [one.type for one in choice.tools] == ["web_search", "function"]
    assert replace_mcp_labels(request, {}) is request


# --- every model ---------------------------------------------------------------------------------


async def _search_script() -> WebSearchProvider:
    index = PageIndex(":memory:")
    await index.add([PageDocument(url="https://a.example/", title="A", text="A fjord.")])
    return WebSearchProvider(index, is_external=False)


@pytest.mark.requirement("VO-7")
@pytest.mark.parametrize("model", sorted(MODELS))
async def test_server_tools_are_available_for_every_model(
    serve: Serve, ask_foreground: Ask, model: str
) -> None:
    """Tools are rendered by the chat template, or described in words."""
    server = serve(
        local(engine(["I know."], model), model), providers={"web_search": await _search_script()}
    )
    answer = await ask_foreground(server, tools=[{"type": "web_search"}])
    assert "x-antiphon-ignored-tools" not in answer.headers
    assert '"browser__search"' in rendered_prompts(server)[0]


@pytest.mark.requirement("VO-7")
async def test_server_tools_are_available_for_upstreams(serve: Serve, ask_foreground: Ask) -> None:
    scripts = [call('{"query": "fjord"}', name="search"), message_deltas("So it is.")]
    server = serve(
        with_namespace(scripts, "browser"), providers={"web_search": await _search_script()}
    )
    answer = await ask_foreground(server, tools=[{"type": "web_search"}])
    assert answer.output[0]["action"]["query"] == "fjord" and answer.text == "So it is."
