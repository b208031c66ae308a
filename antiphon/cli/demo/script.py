"""The script of the demo: what the scripted model says, and the pages and the file in which its
tools search.

The script is a list of steps. In each step, the model calls one tool. A step is left out if its
tool does not work on this machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from antiphon.config.mcp import McpServer
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import WebSearchSettings
from antiphon.tools.web_search.index import PageDocument

#: The name says that no language model answers.
MODEL = "scripted-tour"
QUESTION = "Take the tour: how many days does a ship need for Europe's longest river?"
_CUE = "Take the tour"
_NOTEBOOK = Path(__file__).with_name("notebook.py")
FILE = (
    "cruise-notes.md",
    b"# Cruise notes\n\nOur ship makes 14 km in an hour and travels 10 hours a day.\n",
)
PAGES = (
    PageDocument(
        url="https://rivers.example/volga",
        title="Volga",
        text="The Volga is the longest river of Europe.\nIt is 3,530 km long.\n",
    ),
    PageDocument(
        url="https://rivers.example/danube",
        title="Danube",
        text="The Danube is the second longest river of Europe.\nIt is 2,850 km long.\n",
    ),
)
_CODE = 'length, speed, hours = 3530, 14, 10\nprint(round(length / speed / hours), "days")'
_OTHERWISE = (
    f"I am a script, not a language model: I only know the tour. Send “{QUESTION}” with the tools"
    " that the terminal printed, or serve a real model."
)


class _Step(Struct, frozen=True):
    """One answer of the scripted model, in which the model calls a tool.

    - ``tool``: the type of the tool.
    - ``thought``: the text of the model's reasoning.
    - ``says``: the text of the answer before the tool call.
    - ``function`` and ``arguments``: the function that the model calls, and its arguments.
    - ``sentence``: the text that this step adds to the model's last answer, which comes after all
      tool calls.
    """

    tool: str
    thought: str
    function: str
    arguments: dict[str, object]
    sentence: str = ""
    says: str = ""

    def turn(self) -> str:
        call = json.dumps({"name": self.function, "arguments": self.arguments})
        return f"<think>\n{self.thought}\n</think>\n\n{self.says}<tool_call>\n{call}\n</tool_call>"


_STEPS = (
    _Step(
        "web_search",
        "Which river is the longest? I search the index.",
        "browser__search",
        {"query": "longest river of Europe"},
    ),
    _Step(
        "web_search",
        "The first result looks right. I open it.",
        "browser__open",
        {"cursor": 0, "id": 0},
        "The Volga is Europe's longest river, 3,530 km 【1†L1-L2】. ",
    ),
    _Step(
        "file_search",
        "How fast is the ship? The user's files may say so.",
        "file_search",
        {"queries": ["speed of the ship and hours of travel a day"]},
    ),
    _Step(
        "code_interpreter",
        "Now I compute the days.",
        "python",
        {"input": _CODE},
        "A ship needs 25 days. ",
        "Your notes say 14 km an hour, for 10 hours a day 【f1】.\n\n",
    ),
    _Step(
        "mcp",
        "The user may want to keep that. Saving needs an approval.",
        "notebook__save_note",
        {"text": "The Volga takes 25 days by ship."},
        "I saved the result in your notebook.",
    ),
)


def write_scenes(path: Path, ready: Collection[str]) -> None:
    """Write the script of the demo to the file ``path``, which the engine ``replay`` can play.
    ``ready``: types of the tools that work on this machine; steps with other tools are left out."""
    steps = [step for step in _STEPS if step.tool in ready]
    answer = "".join(step.sentence for step in steps) or "No tool works on this machine."
    turns = [*(step.turn() for step in steps), answer]
    path.write_text(
        "pause_s = 0.01\n" + _scene("", [_OTHERWISE]) + _scene(_CUE, turns), encoding="utf-8"
    )


def _scene(cue: str, turns: Iterable[str]) -> str:
    texts = ", ".join(json.dumps(turn, ensure_ascii=False) for turn in turns)
    return f"[[scenes]]\nwhen = {json.dumps(cue)}\nturns = [{texts}]\n"


def tools(ready: Collection[str], store_id: str) -> list[dict[str, object]]:
    """Return the tools for the demo's request. Tools whose type is not in ``ready`` are left out.
    ``store_id``: id of the vector store with the demo's file."""
    declared: list[dict[str, object]] = [
        {"type": "web_search"},
        {"type": "file_search", "vector_store_ids": [store_id]},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "mcp", "server_label": "notebook", "require_approval": "always"},
    ]
    return [tool for tool in declared if tool["type"] in ready]


def demo_settings(settings: Settings, folder: Path) -> Settings:
    """Return a copy of ``settings`` in which the only model is the scripted model. ``folder``: the
    folder in which the demo stores its files."""
    model = Model(
        engine="replay",
        source=str(folder / "tour.toml"),
        reasoning_format="think",
        tool_format="hermes",
    )
    notebook = McpServer(command=sys.executable, args=("-I", str(_NOTEBOOK)))
    return replace(
        settings,
        models={MODEL: model},
        default_model=None,
        reasoning_summaries="excerpt",
        summary_model=None,
        store="memory:",
        prompts_dir=folder / "prompts",
        web_search=WebSearchSettings(index=folder / "web.db"),
        mcp=replace(settings.mcp, servers={"notebook": notebook}),
        log_level="warning",
        stall_log_ms=0,
    )
