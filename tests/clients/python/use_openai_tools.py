"""The official Python client, with every tool that has a name."""

import base64

import openai
from checks import MODEL, PICTURE, SCHEMA, run
from openai import OpenAI

client = OpenAI(max_retries=0)
WEATHER = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
TOYS = {"type": "mcp", "server_label": "toys", "require_approval": "never"}
PNG = b"\x89PNG"
FJORDS = "https://wiki.example/fjords.md"


def streamed(request, **more):
    """The events and the response, which its own accumulator and a plain answer agree with."""
    with client.responses.stream(model=MODEL, input=request, **more) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.status == "completed" and final.error is None
    stored = client.responses.retrieve(final.id).output
    assert [item.to_dict() for item in stored] == [_plain(item) for item in final.output]
    plain = client.responses.create(model=MODEL, input=request, **more)
    assert [item.type for item in plain.output] == [item.type for item in final.output]
    assert plain.output_text == final.output_text
    return [event.type.removeprefix("response.") for event in events], final


def _plain(item):
    """Without what its accumulator adds."""
    fields = item.to_dict()
    fields.pop("parsed_arguments", None)
    for part in fields.get("content") or ():
        part.pop("parsed", None)
    return fields


def follow(types, *steps):
    """Check that these events come in this order. Other events may come in between."""
    rest = iter(types)
    missing = [step for step in steps if step not in rest]
    assert not missing, (missing, types)


def a_web_search():
    types, final = streamed(
        "How long is the Sognefjord?",
        tools=[{"type": "web_search"}],
        include=["web_search_call.action.sources"],
    )
    search, opened, found, message = final.output
    assert search.action.type == "search" and search.action.query == "Sognefjord"
    assert [source.url for source in search.action.sources] == [FJORDS]
    assert (opened.action.type, opened.action.url) == ("open_page", FJORDS)
    assert (found.action.type, found.action.pattern) == ("find_in_page", "longest")
    (cited,) = message.content[0].annotations
    assert (cited.type, cited.url, cited.title) == ("url_citation", FJORDS, "Fjords")
    assert "wiki.example" in final.output_text[cited.start_index : cited.end_index]
    steps = [f"web_search_call.{step}" for step in ("in_progress", "searching", "completed")]
    follow(types, *steps, "output_text.annotation.added", "completed")


def a_file_search():
    store = client.vector_stores.create(name="animals")
    client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id,
        file=("fox.txt", b"The red animal is a fox."),
        attributes={"kind": "mammal"},
    )
    found = client.vector_stores.search(store.id, query="red animal")
    assert [each.filename for each in found] == ["fox.txt"]
    tool = {"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 3}
    types, final = streamed(
        "Which animal is red?", tools=[tool], include=["file_search_call.results"]
    )
    call, message = final.output
    assert call.queries == ["red animal"] and call.status == "completed"
    (result,) = call.results
    assert (result.filename, result.attributes) == ("fox.txt", {"kind": "mammal"})
    (cited,) = message.content[0].annotations
    assert (cited.type, cited.filename) == ("file_citation", "fox.txt")
    assert final.output_text == "The fox." and cited.file_id == result.file_id
    steps = [f"file_search_call.{step}" for step in ("in_progress", "searching", "completed")]
    follow(types, *steps, "output_text.annotation.added", "completed")
    try:
        client.responses.create(
            model=MODEL, input="hi", tools=[{**tool, "vector_store_ids": ["vs_none"]}]
        )
    except openai.NotFoundError as error:
        assert "vs_none" in str(error)
    else:
        raise AssertionError("a vector store that is none is searched")


def code():
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    types, final = streamed(
        "What are the first squares?", tools=[tool], include=["code_interpreter_call.outputs"]
    )
    call, message = final.output
    assert call.code.endswith("[n * n for n in range(5)]")
    assert [(each.type, each.logs) for each in call.outputs] == [("logs", "[0, 1, 4, 9, 16]\n")]
    (cited,) = message.content[0].annotations
    assert (cited.type, cited.filename) == ("container_file_citation", "note.txt")
    assert final.output_text[cited.start_index : cited.end_index] == "sandbox:/mnt/data/note.txt"
    content = client.containers.files.content.retrieve(
        cited.file_id, container_id=cited.container_id
    )
    assert content.read() == b"hi"
    steps = ("in_progress", "interpreting", "completed")
    written = [f"code_interpreter_call_code.{step}" for step in ("delta", "done")]
    follow(types, f"code_interpreter_call.{steps[0]}", *written)
    follow(types, *(f"code_interpreter_call.{step}" for step in steps), "completed")
    mine = client.containers.create(name="mine")
    again = client.responses.create(
        model=MODEL,
        input="Code that goes wrong",
        tools=[{**tool, "container": mine.id}],
        include=["code_interpreter_call.outputs"],
    )
    assert again.output[0].container_id == mine.id and again.output[0].status == "completed"
    assert "ZeroDivisionError" in again.output[0].outputs[0].logs
    client.containers.delete(mine.id)


def mcp():
    types, final = streamed("What is the sum of two and three?", tools=[TOYS])
    listed, call, _ = final.output
    assert "add" in [tool.name for tool in listed.tools] and listed.server_label == "toys"
    assert (call.name, call.output, call.error) == ("add", "5", None)
    steps = ["mcp_list_tools.in_progress", "mcp_list_tools.completed", "mcp_call.in_progress"]
    follow(types, *steps, "mcp_call_arguments.done", "mcp_call.completed", "completed")
    guarded = {**TOYS, "require_approval": "always"}
    response = client.responses.create(
        model=MODEL, input="What is the sum of two and three?", tools=[guarded]
    )
    for approve in (True, False):
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": response.output[-1].id,
            "approve": approve,
        }
        done = client.responses.create(
            model=MODEL, input=[answer], previous_response_id=response.id, tools=[guarded]
        )
        kinds = [item.type for item in done.output]
        assert kinds == (["mcp_call", "message"] if approve else ["message"])


def a_shell_here():
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    types, final = streamed("How many lines has the poem?", tools=[tool])
    call, output, message = final.output
    assert len(call.action.commands) == 2 and call.environment.container_id.startswith("cntr_")
    assert output.call_id == call.call_id
    assert [each.outcome.exit_code for each in output.output] == [0, 0]
    assert output.output[1].stdout == "2\n" and message.type == "message"
    follow(types, "shell_call_command.added", "shell_call_command.done", "completed")


def answer_call(request, tool, output):
    """What the client runs: the response ends with the call, and goes on with its output, chained
    and replayed."""
    _, first = streamed(request, tools=[tool])
    calls = [item for item in first.output if item.type.endswith("_call")]
    outputs = [{"call_id": call.call_id, **output(call)} for call in calls]
    chained = client.responses.create(
        model=MODEL, input=outputs, previous_response_id=first.id, tools=[tool]
    )
    replayed = client.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": request}, *first.output, *outputs],
        tools=[tool],
        store=False,
    )
    assert [item.type for item in chained.output] == [item.type for item in replayed.output]
    return calls, chained


def shells_of_the_client():
    output = {"stdout": "ahoy\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    calls, done = answer_call(
        "What do my files say?",
        {"type": "shell"},
        lambda call: {"type": "shell_call_output", "output": [output]},
    )
    assert calls[0].action.commands == ["echo ahoy"] and calls[0].action.timeout_ms == 5000
    assert done.output_text == "They say ahoy."
    calls, done = answer_call(
        "Say ahoy without a shell",
        {"type": "local_shell"},
        lambda call: {"type": "local_shell_call_output", "id": call.id, "output": "ahoy"},
    )
    assert calls[0].action.command == ["echo", "ahoy"] and done.output_text == "It said ahoy."


def patches():
    calls, more = answer_call(
        "Make and mend greet.py",
        {"type": "apply_patch"},
        lambda call: {"type": "apply_patch_call_output", "status": "completed"},
    )
    assert [call.operation.path for call in calls] == ["greet.py", "old.py"]
    assert calls[0].operation.diff == '+print("helo")\n'
    assert [item.operation.type for item in more.output] == ["update_file", "delete_file"]


def a_screen():
    picture = {
        "type": "computer_screenshot",
        "image_url": f"data:image/png;base64,{PICTURE}",
    }
    first = client.responses.create(
        model=MODEL, input="Press the button on the screen", tools=[{"type": "computer"}]
    )
    (call,) = first.output
    assert call.type == "computer_call" and call.pending_safety_checks == []
    assert [action.type for action in call.actions] == ["screenshot"]
    output = {"type": "computer_call_output", "call_id": call.call_id, "output": picture}
    second = client.responses.create(
        model=MODEL,
        input=[output],
        previous_response_id=first.id,
        tools=[{"type": "computer"}],
    )
    (action,) = second.output[0].actions
    assert (action.type, action.x, action.y) == ("click", 3, 4)


def a_search_for_tools():
    space = {
        "type": "namespace",
        "name": "garden",
        "description": "The garden.",
        "tools": [
            {
                "type": "function",
                "name": "water_plants",
                "description": "Waters the plants.",
                "defer_loading": True,
                "parameters": {"type": "object", "properties": {"litres": {"type": "number"}}},
            }
        ],
    }
    tools = [{"type": "tool_search"}, space]
    _, first = streamed("Water the garden", tools=tools)
    search, found, call = first.output
    assert search.execution == "server" and search.status == "completed"
    assert [each.name for each in found.tools] == ["garden"]
    assert (call.type, call.namespace, call.name) == ("function_call", "garden", "water_plants")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "wet"}
    done = client.responses.create(
        model=MODEL, input=[output], previous_response_id=first.id, tools=tools
    )
    assert done.output_text == "The garden is wet."


def tools_of_both_in_one_turn():
    tools = [TOYS, WEATHER]
    _, first = streamed("Add, and ask for the weather", tools=tools)
    _, ran, call = first.output
    assert (ran.output, call.name) == ("5", "get_weather")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    for more in (
        {"input": [output], "previous_response_id": first.id},
        {
            "input": [
                {"role": "user", "content": "Add, and ask for the weather"},
                *first.output,
                output,
            ]
        },
    ):
        done = client.responses.create(model=MODEL, tools=tools, **more)
        assert done.output_text == "Five, and sunny."
        assert [item.type for item in done.output] == ["message"]


def images():
    tool = {"type": "image_generation", "size": "16x16", "partial_images": 2}
    choice = {"type": "image_generation"}
    types, final = streamed("Draw a cat", tools=[tool], tool_choice=choice)
    image = final.output[0]
    assert base64.b64decode(image.result).startswith(PNG) and image.size == "16x16"
    assert (image.status, image.action, image.revised_prompt) == (
        "completed",
        "generate",
        "A small cat",
    )
    assert final.tool_usage.image_gen.output_tokens == 30
    steps = ("in_progress", "generating", "partial_image", "partial_image", "completed")
    follow(types, *(f"image_generation_call.{step}" for step in steps), "output_item.done")
    named = {"type": "image_generation_call", "id": image.id}
    for way in (
        {"request": "Make it green", "previous_response_id": final.id},
        {"request": [named, {"role": "user", "content": "Make it green"}]},
        {"request": [image.to_dict(), {"role": "user", "content": "Make it green"}]},
    ):
        _, changed = streamed(tools=[tool], **way)
        assert changed.output[0].action == "edit" and changed.output_text == "Greener now."
    _, refused = streamed("Draw what is forbidden", tools=[tool])
    assert refused.output[0].status == "failed"
    assert refused.output[0].error.code == "moderation_blocked"
    assert refused.output_text == "I may not draw that."


def in_the_background():
    queued = client.responses.create(
        model=MODEL, input="What is the sum of two and three?", tools=[TOYS], background=True
    )
    events = list(client.responses.retrieve(queued.id, stream=True))
    assert events[-1].response.output[1].output == "5"
    rest = list(client.responses.retrieve(queued.id, stream=True, starting_after=4))
    assert rest == events[5:]


run(
    a_web_search,
    a_file_search,
    code,
    mcp,
    a_shell_here,
    shells_of_the_client,
    patches,
    a_screen,
    a_search_for_tools,
    images,
    tools_of_both_in_one_turn,
    in_the_background,
)
