"""Tools that break, hang, shout and die, and clients that leave: the server as it is run, a real
MCP server, the official client. The model plays a script.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.server import Server, serving
from tests.harness import ServerSetup, scene
from tests.tools.mcp.process import Toys


def _call(tool: str, **arguments: Any) -> str:
    call_text = json.dumps({"name": f"toys__{tool}", "arguments": arguments})
    return f"<tool_call>\n{call_text}\n</tool_call>"


#: What is asked → what the model says, turn by turn; the last one again and again.
SCENES: dict[str, list[str]] = {
    "fail": [_call("fail"), "It failed."],
    "hang": [_call("hang", name="late"), "It hung."],
    "leave": [_call("hang", name="left"), "Never."],
    "cancel": [_call("hang", name="cancelled"), "Never."],
    "crash": [_call("hang", name="crash"), "It was interrupted."],
    "shout": [_call("long") * 4, "It was loud.", "As I said."],
    "die": [_call("die"), _call("add", a=1, b=1), "It is back."],
    "invent": [_call("gone"), "There is none."],
    "forbid": [_call("delete", name="attic"), "I may not."],
    "for ever": [_call("add", a=1, b=1)],
    "garbage": ['<tool_call>\n{"name": "toys__add", "arguments": {"a": "x\n</tool_call>', "Oh."],
}
SETTINGS = 'mcp.allowed_networks = ["127.0.0.1"]\ntool_timeout_s = 2\nmax_turns = 4\n'


def _model(folder: Path) -> str:
    scenes = "".join(scene(f"Please {when}!", *turns) for when, turns in SCENES.items())
    (folder / "scenes.toml").write_text(scenes)
    source = f'engine = "replay"\nsource = "{folder}/scenes.toml"\n'
    return f"[models.replay]\n{source}context_size = 9000\n"


@pytest.fixture(scope="module")
def server_setup(server_folder: Path) -> ServerSetup:
    return ServerSetup(settings=SETTINGS, model=_model(server_folder))


def respond(toys: Toys, what: str, **more: Any) -> Any:
    tool = {
        "type": "mcp",
        "server_label": "toys",
        "server_url": toys.url,
        "require_approval": "never",
        "allowed_tools": ["add", "fail", "hang", "long", "die"],
    }
    return {"model": "replay", "input": f"Please {what}!", "tools": [tool], **more}


def until(holds: Callable[[], bool]) -> None:
    """Wait until the condition holds, for a bounded time."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def calls(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "mcp_call"]


@pytest.mark.parametrize(
    ("what", "why", "answer"),
    [
        ("fail", "the toy is broken", "It failed."),
        ("hang", "too long", "It hung."),
        ("garbage", "not a JSON object", "Oh."),
    ],
)
def test_failed_tool_yields_a_failed_item(
    client: OpenAI, toys: Toys, what: str, why: str, answer: str
) -> None:
    with client.responses.stream(**respond(toys, what)) as stream:
        types = [event.type for event in stream]
        response = stream.get_final_response()
    (call,) = calls(response)
    assert call.status == "failed" and why in str(call.error)
    assert types.count("response.mcp_call.failed") == 1
    assert "response.mcp_call.completed" not in types
    assert response.status == "completed" and response.output_text == answer


@pytest.mark.parametrize("what", ["invent", "forbid"])
def test_tool_outside_the_request_never_runs(client: OpenAI, toys: Toys, what: str) -> None:
    response = client.responses.create(**respond(toys, what))
    assert [item.type for item in response.output] == ["mcp_list_tools", "message"]
    assert not any("delete" in line for line in toys.log)


def test_long_tool_output_is_truncated(client: OpenAI, toys: Toys) -> None:
    """Four calls of a turn return 200 kB each; a token is a byte here."""
    first = client.responses.create(**respond(toys, "shout"))
    assert len(calls(first)) == 4 and first.output_text == "It was loud."
    assert all("characters left out" in call.output for call in calls(first))
    # The next prompt is the same: it fits, although the results had to be shortened for it.
    more = respond(toys, "shout", input="And?", previous_response_id=first.id)
    second = client.responses.create(**more)
    assert second.status == "completed" and second.output_text == "As I said."


def test_turns_are_limited(client: OpenAI, toys: Toys) -> None:
    response = client.responses.create(**respond(toys, "for ever"))
    assert len(calls(response)) == 3 and response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_messages"
    assert response.usage is not None and response.usage.input_tokens > 0


def test_disconnect_stops_running_tools(client: OpenAI, server: Server, toys: Toys) -> None:
    stream = client.responses.create(**respond(toys, "leave"), stream=True)
    for event in stream:
        if event.type == "response.mcp_call_arguments.done":
            break
    until(lambda: "hang left" in toys.log)
    stream.close()
    until(lambda: "cancelled left" in toys.log and server.running() == 0)


def test_cancelling_stops_running_tools(client: OpenAI, toys: Toys) -> None:
    queued = client.responses.create(**respond(toys, "cancel"), background=True)
    until(lambda: "hang cancelled" in toys.log)
    response = client.responses.cancel(queued.id)
    assert response.status == "cancelled"
    until(lambda: "cancelled cancelled" in toys.log)


def test_interrupted_call_is_not_repeated_after_a_crash(tmp_path: Path, toys: Toys) -> None:
    """A call is recorded before it runs. After a crash it is a failed item that the model sees."""
    settings = f"{SETTINGS}lease_s = 1\n"
    asking: Any = {"base_url": "", "api_key": "none", "max_retries": 0, "timeout": 30}
    with serving(tmp_path, settings, model=_model(tmp_path)) as server:
        with OpenAI(**{**asking, "base_url": server.url}) as client:
            queued = client.responses.create(**respond(toys, "crash"), background=True)
            until(lambda: "hang crash" in toys.log)
        server.kill()
    with serving(tmp_path, settings, model=_model(tmp_path)) as server:
        with OpenAI(**{**asking, "base_url": server.url}) as client:
            done = lambda: client.responses.retrieve(queued.id)  # noqa: E731
            until(lambda: done().status not in ("queued", "in_progress"))
            response = done()
            events = list(client.responses.retrieve(queued.id, stream=True))
    (call,) = calls(response)
    assert call.status == "failed" and "interrupted" in str(call.error)
    assert response.output_text == "It was interrupted."
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert toys.log.count("hang crash") == 1
    assert response.usage is not None and response.usage.input_tokens > 500
