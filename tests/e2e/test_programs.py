"""Programs that a model writes, in a real server, through the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.harness import ServerSetup, scene
from tests.real.embedded_model import smollm2

pytestmark = pytest.mark.e2e

PIECES = {"x": 1, "y": 2, "z": 39}
TOOLS: Any = [
    {
        "type": "function",
        "name": "stock",
        "description": "Pieces in stock.",
        "parameters": {
            "type": "object",
            "properties": {"sku": {"type": "string"}},
            "required": ["sku"],
            "additionalProperties": False,
        },
        "output_schema": {
            "type": "object",
            "properties": {"pieces": {"type": "integer"}},
            "required": ["pieces"],
        },
        "allowed_callers": ["programmatic"],
        "strict": True,
    },
    {"type": "programmatic_tool_calling"},
]
CODE = """const [x, y] = await Promise.all([tools.stock({sku: "x"}), tools.stock({sku: "y"})]);
const z = await tools.stock({sku: "z"});
text({total: x.pieces + y.pieces + z.pieces});"""


@pytest.fixture(scope="module")
def server_setup(server_folder: Path) -> ServerSetup:
    pytest.importorskip("xllamacpp")
    call = json.dumps({"name": "program", "arguments": {"input": CODE}})
    turns = [f"<tool_call>\n{call}\n</tool_call>", "There are 42 pieces."]
    (server_folder / "scenes.toml").write_text(scene("How many", *turns))
    model = '[models.replay]\nengine = "replay"\nsource = "scenes.toml"\n'
    model += f'[models.smollm2]\nsource = "{smollm2()}"\nthreads = 1\ncontext_size = 2048\n'
    return ServerSetup(settings="programs.cpu_timeout_s = 2", model=model)


def respond(client: OpenAI, streamed: bool, **body: Any) -> Any:
    if not streamed:
        return client.responses.create(**body)
    with client.responses.stream(**body) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def outputs(response: Any) -> list[Any]:
    """Return the outputs as OpenAI's guide has a client send them."""
    return [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": json.dumps({"pieces": PIECES[json.loads(item.arguments)["sku"]]}),
            "caller": item.caller.model_dump(),
        }
        for item in response.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("stored", [False, True], ids=["stateless", "stored"])
def test_client_runs_the_calls_of_a_program(client: OpenAI, streamed: bool, stored: bool) -> None:
    input: Any = [{"role": "user", "content": "How many pieces are there?"}]
    body: dict[str, Any] = {"model": "replay", "tools": TOOLS, "store": stored}
    observed: list[list[str]] = []
    for _ in range(5):
        response = respond(client, streamed, **body, input=input)
        assert response.status == "completed"
        observed.append([item.type for item in response.output])
        answers = outputs(response)
        if not answers:
            break
        if stored:
            body["previous_response_id"], input = response.id, answers
        else:
            input += [item.model_dump(exclude_none=True) for item in response.output] + answers
    assert observed == [
        ["program", "function_call", "function_call"],
        ["function_call"],
        ["program_output", "message"],
    ]
    output = response.output[0]
    assert (output.result, output.status) == ('{"total":42}', "completed")
    assert response.output_text == "There are 42 pieces."


def test_program_of_the_real_model_runs(client: OpenAI) -> None:
    """The program is whatever so small a model takes for JavaScript."""
    response: Any = client.responses.create(
        model="smollm2",
        input="How many pieces of x are there?",
        tools=TOOLS,
        tool_choice={"type": "programmatic_tool_calling"},
        temperature=0,
        max_output_tokens=200,
        parallel_tool_calls=False,
    )
    created = response.output[0]
    assert created.type == "program" and created.code
    kinds = [item.type for item in response.output[1:]]
    if "function_call" not in kinds:
        assert kinds[0] == "program_output" and kinds[-1] == "message"
    assert response.tool_choice.type == "programmatic_tool_calling"


def test_program_of_a_client_is_refused(client: OpenAI) -> None:
    program = {"type": "program", "id": "prg_1", "call_id": "call_p", "code": "text(1)"}
    with pytest.raises(BadRequestError, match="fingerprint"):
        client.responses.create(
            model="replay",
            tools=TOOLS,
            input=[{"role": "user", "content": "hi"}, {**program, "fingerprint": "mine"}],  # type: ignore[list-item]
        )
