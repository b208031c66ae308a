"""What our rows say of writing calls, as vLLM's own parsers read it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from antiphon.dialects.formats.tool_formats import TOOLS
from tests.dialects.replies import SHAPES, specials, write_calls

pytestmark = pytest.mark.engines
registry = pytest.importorskip("vllm.tool_parsers", reason="vLLM is not installed")

PARSERS = Path(__file__).parents[1] / "dialects" / "parsers.toml"
ROWS = tomllib.loads(PARSERS.read_text(encoding="utf-8"))["tools"]
#: Why a parser of vLLM's is not asked.
NOT_ASKED = {
    "cohere_command3": "reads calls and answers as one",
    "cohere_command4": "reads calls and answers as one",
    "functiongemma": "reads nothing but strings",
    "hf": "reads what a model's files say",
    "hy_v3": "asks transformers for the suffix of its tags",
    "minimax_m3": "reads by the ids of its own vocabulary",
    "mistral": "reads what tokenizers before v11 make otherwise",
    "openai": "is harmony",
}
ONE = [("search", {"query": "a, b", "limit": 3})]
SEVERAL = [("get_weather", {"city": "Ö 😀", "metric": True}), ("now", {})]
#: Those that read one call a reply.
SINGLE = {"internlm", "gigachat3"}


class Letters:
    """A vocabulary of special tokens and letters, as vLLM asks one."""

    bos_token_id = eos_token_id = None

    def __init__(self, special: Collection[str]) -> None:
        self._ids = {token: 0x110000 + n for n, token in enumerate(special)}
        self._names = {id: token for token, id in self._ids.items()}
        self._split = re.compile("(" + "|".join(map(re.escape, self._ids)) + "|.)", re.DOTALL)
        self.all_special_tokens = list(self._ids)
        self.all_special_ids = list(self._names)

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(n): n for n in range(128)}, **self._ids}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._ids.get(piece) or ord(piece) for piece in self._split.findall(text)]

    def decode(self, ids: int | list[int], **_: Any) -> str:
        ids = [ids] if isinstance(ids, int) else ids
        return "".join(self._names.get(id) or chr(id) for id in ids)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.get_vocab().get(token)


def names() -> list[str]:
    known = registry.ToolParserManager.list_registered()
    return sorted(set(known) & ROWS.keys() - NOT_ASKED.keys())


@pytest.mark.parametrize("name", names())
def test_vllm_parses_calls_in_our_formats(name: str) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    row = TOOLS[ROWS[name]]
    tools = [
        {"type": "function", "function": {"name": tool, "parameters": shape.schema}}
        for tool, shape in SHAPES.items()
    ]
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "Hi"}], tools=tools, tool_choice="auto"
    )
    special = sorted({*specials(row), "<think>", "</think>"}, key=len, reverse=True)
    for calls in (ONE,) if name in SINGLE else (ONE, SEVERAL):
        parser = registry.ToolParserManager.get_tool_parser(name)(Letters(special), request.tools)
        found = parser.extract_tool_calls(write_calls(row, calls), request).tool_calls
        read = [(call.function.name, json.loads(call.function.arguments)) for call in found]
        assert read == calls, name
