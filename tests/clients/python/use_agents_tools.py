"""OpenAI's Agents SDK for Python, with every tool of its own."""

import base64
import subprocess
import sys
from pathlib import Path

from agents import (
    Agent,
    ApplyPatchTool,
    CodeInterpreterTool,
    Computer,
    ComputerTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    LocalShellTool,
    ModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    ProgrammaticToolCallingTool,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    ToolSearchTool,
    WebSearchTool,
    apply_diff,
    function_tool,
    set_tracing_disabled,
    tool_namespace,
)
from checks import MODEL, PICTURE, run
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
client = AsyncOpenAI(max_retries=0)
model = OpenAIResponsesModel(MODEL, client)


async def ask_both_ways(question, *tools, on=model, **settings):
    """What an agent with these tools answers; it is asked in both ways, and told what it said."""
    agent = Agent(name="a", model=on, tools=list(tools), model_settings=ModelSettings(**settings))
    streamed = Runner.run_streamed(agent, question)
    names = [e.name async for e in streamed.stream_events() if e.type == "run_item_stream_event"]
    plain = await Runner.run(agent, question)
    assert plain.final_output == streamed.final_output
    kinds = [item.type for item in streamed.new_items]
    assert len(names) == len(kinds) == len(plain.new_items), (names, kinds)
    more = [*plain.to_input_list(), {"role": "user", "content": "Thanks!"}]
    free = agent.clone(model_settings=ModelSettings(**{**settings, "tool_choice": None}))
    assert (await Runner.run(free, more)).final_output
    return streamed


def cited(done):
    return done.new_items[-1].raw_item.content[0].annotations


async def a_web_search():
    done = await ask_both_ways(
        "How long is the Sognefjord?",
        WebSearchTool(),
        response_include=["web_search_call.action.sources"],
    )
    search = done.new_items[0].raw_item
    assert search.type == "web_search_call" and search.action.query == "Sognefjord"
    assert search.action.sources and cited(done)[0].title == "Fjords"


async def a_file_search():
    store = await client.vector_stores.create(name="animals")
    await client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("fox.txt", b"The red animal is a fox.")
    )
    tool = FileSearchTool(vector_store_ids=[store.id], include_search_results=True)
    done = await ask_both_ways("Which animal is red?", tool)
    assert done.final_output == "The fox." and cited(done)[0].filename == "fox.txt"
    (result,) = done.new_items[0].raw_item.results
    assert result.text == "The red animal is a fox."


async def code():
    tool = CodeInterpreterTool({"type": "code_interpreter", "container": {"type": "auto"}})
    done = await ask_both_ways(
        "What are the first squares?", tool, response_include=["code_interpreter_call.outputs"]
    )
    call = done.new_items[0].raw_item
    assert call.outputs[0].logs == "[0, 1, 4, 9, 16]\n" and cited(done)[0].filename == "note.txt"


async def images():
    config = {"type": "image_generation", "size": "16x16", "partial_images": 1}
    tool = ImageGenerationTool(tool_config=config)
    for settings in ({}, {"tool_choice": "image_generation"}):
        done = await ask_both_ways("Draw a cat", tool, **settings)
        image = done.new_items[0].raw_item
        assert image.type == "image_generation_call" and image.status == "completed"
        assert base64.b64decode(image.result).startswith(b"\x89PNG")
    more = [*done.to_input_list(), {"role": "user", "content": "Make it green"}]
    changed = await Runner.run(Agent(name="a", model=model, tools=[tool]), more)
    assert changed.new_items[0].raw_item.action == "edit"
    assert changed.final_output == "Greener now."
    refused = await ask_both_ways("Draw what is forbidden", tool)
    assert refused.new_items[0].raw_item.status == "failed"
    assert refused.final_output == "I may not draw that."


async def mcp():
    toys = {"type": "mcp", "server_label": "toys", "require_approval": "never"}
    for on in (model, OpenAIResponsesWSModel(MODEL, client)):
        done = await ask_both_ways(
            "What is the sum of two and three?", HostedMCPTool(tool_config=toys), on=on
        )
        assert [item.type for item in done.new_items] == [
            "mcp_list_tools_item",
            "tool_call_item",
            "message_output_item",
        ]
        assert done.new_items[1].raw_item.output == "5"
    await on.close()


async def a_shell_there():
    tool = ShellTool(environment={"type": "container_auto"})
    done = await ask_both_ways("How many lines has the poem?", tool)
    assert done.final_output == "It has two lines."


async def a_shell_with_skills():
    about = "---\nname: dice\ndescription: Rolls dice.\n---\nRun sh roll.sh.\n"
    files = [("dice/SKILL.md", about.encode()), ("dice/roll.sh", b"echo 4")]
    library = await client.skills.create(files=files)
    zipped = (await client.skills.content.retrieve(library.id)).read()
    source = {"type": "base64", "media_type": "application/zip"}
    source["data"] = base64.b64encode(zipped).decode()
    for skill in (
        {"type": "skill_reference", "skill_id": library.id, "version": "1"},
        {"type": "inline", "name": "dice", "description": "Rolls dice.", "source": source},
    ):
        tool = ShellTool(environment={"type": "container_auto", "skills": [skill]})
        done = await ask_both_ways("Roll the die", tool)
        outputs = [item.output for item in done.raw_responses]
        text = [item.output[0].stdout for each in outputs for item in each if "output" in item.type]
        assert text == [about, "4\n"] and done.final_output == "It is a 4."


async def a_shell_of_ours():
    ran = []

    def execute(request):
        ran.extend(request.data.action.commands)
        assert request.data.action.timeout_ms == 5000
        outcome = ShellCallOutcome(type="exit", exit_code=0)
        return ShellResult(output=[ShellCommandOutput(stdout="ahoy\n", outcome=outcome)])

    done = await ask_both_ways("What do my files say?", ShellTool(executor=execute))
    assert done.final_output == "They say ahoy." and ran == ["echo ahoy"] * 2


async def a_local_shell():
    ran = []

    def execute(request):
        command = request.data.action.command
        ran.append(command)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    done = await ask_both_ways("Say ahoy without a shell", LocalShellTool(executor=execute))
    assert done.final_output == "It said ahoy." and ran == [["echo", "ahoy"]] * 2


class Editor:
    """Of the files here."""

    def create_file(self, operation):
        Path(operation.path).write_text(apply_diff("", operation.diff, mode="create"))
        return "made"

    def update_file(self, operation):
        path = Path(operation.path)
        path.write_text(apply_diff(path.read_text(), operation.diff))
        return "changed"

    def delete_file(self, operation):
        Path(operation.path).unlink()
        return "gone"


async def patches():
    done = await ask_both_ways("Make and mend greet.py", ApplyPatchTool(editor=Editor()))
    assert done.final_output == "Done: it says hello."
    text = subprocess.run([sys.executable, "greet.py"], capture_output=True, text=True).stdout
    assert text == "hello\n" and not Path("old.py").exists()


class Screen(Computer):
    """One that is blank."""

    environment = "browser"
    dimensions = (800, 600)

    def __init__(self):
        self.done = []

    def screenshot(self):
        return PICTURE

    def click(self, x, y, button, **_):
        self.done.append((x, y, button))

    def _never(self, *_, **__):
        raise AssertionError("nobody asked for that")

    double_click = scroll = type = wait = move = keypress = drag = _never


async def a_screen():
    screen = Screen()
    for settings in ({}, {"tool_choice": "computer"}):
        done = await ask_both_ways(
            "Press the button on the screen", ComputerTool(computer=screen), **settings
        )
        assert done.final_output == "I pressed it."
    assert screen.done == [(3, 4, "left")] * 4


async def a_search_for_tools():
    watered = []

    @function_tool(defer_loading=True)
    def water_plants(litres: float) -> str:
        """Waters the plants."""
        watered.append(litres)
        return "wet"

    garden = tool_namespace(name="garden", description="The garden.", tools=[water_plants])
    done = await ask_both_ways("Water the garden", *garden, ToolSearchTool())
    assert done.final_output == "The garden is wet." and watered == [3, 3]


async def programs():
    class Stock(BaseModel):
        pieces: int

    @function_tool(allowed_callers=["programmatic"])
    def stock(sku: str) -> Stock:
        """Pieces in stock."""
        return Stock(pieces={"x": 1, "y": 41}[sku])

    for stored in (True, False):
        done = await ask_both_ways(
            "How many pieces are in stock?", stock, ProgrammaticToolCallingTool(), store=stored
        )
        assert done.final_output == "There are 42."
        kinds = [item.raw_item.type for item in done.new_items if hasattr(item.raw_item, "type")]
        assert kinds == ["program", "function_call", "function_call", "program_output", "message"]


async def tools_of_both_in_one_turn():
    @function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    toys = {"type": "mcp", "server_label": "toys", "require_approval": "never"}
    done = await ask_both_ways(
        "Add, and ask for the weather", HostedMCPTool(tool_config=toys), get_weather
    )
    assert done.final_output == "Five, and sunny."


run(
    a_web_search,
    a_file_search,
    code,
    images,
    mcp,
    a_shell_there,
    a_shell_with_skills,
    a_shell_of_ours,
    a_local_shell,
    patches,
    a_screen,
    a_search_for_tools,
    programs,
    tools_of_both_in_one_turn,
)
