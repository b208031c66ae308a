"""A pytest plugin: stand-ins for the modules that vLLM's tests import.

A parser class of vLLM becomes an ``Adapter`` around our parser of the same format. The protocol
classes accept any fields. Constants are read from vLLM's source without running it. Everything else
is ``_Internal``, which skips the test that uses it.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import types
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects.formats.registry import SHIPPED
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.errors import SetupError
from antiphon.inference.tokens import Chunk
from antiphon.testing.tokenizer import END
from tests.dialects.replies import is_bare
from tests.format_suites.replies import AnyNames, Reply, format_parser, plain

_SOURCE = Path(os.environ.get("VLLM_SOURCE", "."))
_ROOTS = frozenset({"vllm", "transformers", "torch", "xgrammar", "mistral_common"})
_ROOTS |= {"partial_json_parser", "huggingface_hub", "cachetools", "lark"}
#: The formats for which vLLM checks the names of tools, too.
_CHECKING = frozenset({"dots", "minicpm5", "k2_horizon"})
#: The formats whose calls vLLM sends only when they are complete, as their tests expect.
_WHOLE_CALLS = frozenset({"k2_horizon"})
#: Names of vLLM for which our default differs from what the tests mean.
_FORMATS = {"hy_v3": "hy_v3_plain", "ernie45": "hermes", "qwen3_json": "hermes"}


def pytest_configure(config: pytest.Config) -> None:
    """Declare vLLM's marks, and replace its modules."""
    for mark in ("skip_global_cleanup", "slow_test", "cpu_test"):
        config.addinivalue_line("markers", f"{mark}: vLLM's own")
    sys.meta_path.insert(0, _Finder())


@pytest.fixture
def default_tokenizer() -> Any:
    return _Tokenizer()


# --- values that compare as their meaning ---------------------------------------------------------


class _Text(str):
    """Text that equals any text with the same words."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return plain(self) == plain(other if isinstance(other, str) else "")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: object) -> bool:
        return plain(str(part)) in plain(self)

    def __add__(self, other: str) -> _Text:
        return _Text(str.__add__(self, other))

    def __radd__(self, other: str) -> _Text:
        return _Text(other + str(self))

    __hash__ = str.__hash__


class _Json(str):
    """JSON that equals any JSON of the same value."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        try:
            return str.__eq__(self, other) or bool(json.loads(self) == json.loads(other or "{}"))
        except ValueError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _text(text: str) -> str | None:
    return _Text(text) if text.strip() else None


# --- protocol classes -----------------------------------------------------------------------------


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return (self.model_extra or {}).get(name)


class FunctionCall(_Record):
    id: Any = None
    name: str | None = None
    arguments: Any = None


class ToolCall(_Record):
    id: Any = None
    type: str = "function"
    function: Any = None


class DeltaFunctionCall(_Record):
    name: str | None = None
    arguments: Any = None


class DeltaToolCall(_Record):
    id: Any = None
    type: str | None = None
    index: int = 0
    function: Any = None


class DeltaMessage(_Record):
    role: Any = None
    content: Any = None
    reasoning: Any = None
    tool_calls: list[Any] = Field(default_factory=list)


class ExtractedToolCallInformation(_Record):
    tools_called: bool = False
    tool_calls: list[Any] = Field(default_factory=list)
    content: Any = None


class FunctionDefinition(_Record):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatCompletionToolsParam(_Record):
    type: str = "function"
    function: FunctionDefinition


class ChatCompletionRequest(_Record):
    messages: list[Any] = Field(default_factory=list)
    model: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = "auto"
    include_reasoning: bool = True
    skip_special_tokens: bool = True

    def __init__(self, **fields: Any) -> None:
        tools = fields.get("tools")
        if tools:
            fields["tools"] = [
                ChatCompletionToolsParam.model_validate(tool)
                if isinstance(tool, dict) and "function" in tool
                else tool
                for tool in tools
            ]
        super().__init__(**fields)

    def to_sampling_params(self, *_: Any, **__: Any) -> Any:
        pytest.skip("an internal of vLLM: to_sampling_params")


class ResponsesRequest(ChatCompletionRequest):
    pass


_PROTOCOL: Mapping[str, Any] = {
    each.__name__: each
    for each in (
        FunctionCall,
        ToolCall,
        DeltaFunctionCall,
        DeltaToolCall,
        DeltaMessage,
        ExtractedToolCallInformation,
        FunctionDefinition,
        ChatCompletionToolsParam,
        ChatCompletionRequest,
        ResponsesRequest,
    )
} | {"TokenizerLike": Any, "VLLMValidationError": ValueError}


# --- parsers --------------------------------------------------------------------------------------


def _shapes(tools: Iterable[Any], text: str, tool_format: Any) -> Mapping[str, ToolShape]:
    """Return the tools of a test. If the test names no tools, every name counts as a tool. In
    formats where only the name of a tool marks a call, every name that looks like a tool's name
    counts as one."""
    shapes: dict[str, ToolShape] = {}
    for tool in tools:
        function = getattr(tool, "function", None) or tool
        fields = function if isinstance(function, dict) else vars(function)
        fields = fields.get("function", fields) if isinstance(fields, dict) else fields
        name, schema = fields.get("name"), fields.get("parameters")
        if isinstance(name, str):
            schema = schema if isinstance(schema, dict) else None
            shapes[name] = ToolShape(wire_name=name, schema=schema)
    if shapes:
        return shapes
    if is_bare(tool_format) or tool_format.doubtful:
        names = re.findall(r'"(?:name|tool_name|function)"\s*:\s*"([^"]+)"', text)
        names += re.findall(r"([A-Za-z_][\w.]*)\(", text) + re.findall(
            r"[=>]([A-Za-z_][\w.]*)", text
        )
        return {name: ToolShape(wire_name=name) for name in names} or _CALLABLE
    return AnyNames()


class _Callable(AnyNames):
    """The names that vLLM's tests call without stating tools."""

    def __getitem__(self, name: str) -> ToolShape:
        if not re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+|f|ping|search", str(name)):
            raise KeyError(name)
        return super().__getitem__(name)


_CALLABLE = _Callable()


class Adapter:
    """Our parser of a format with the methods of vLLM's parsers. ``form``: the tool format."""

    form: str | None = None
    supports_required_and_named = True

    def __init__(self, tokenizer: Any = None, tools: Any = None, *_: Any, **__: Any) -> None:
        if self.form is None:
            pytest.skip("no such format")
        self.model_tokenizer = tokenizer
        self.tools = tools if isinstance(tools, Sequence) else None
        self._reply: Reply | None = None

    @property
    def vocab(self) -> Any:
        return self.model_tokenizer.get_vocab()

    def _begin(self, request: Any, text: str = "") -> None:
        tool_format = SHIPPED.tool_format(self.form or "")
        tools = self.tools or getattr(request, "tools", None)
        shapes = _shapes(tools if isinstance(tools, list | tuple) else (), text, tool_format)
        self._parser, self._ids = format_parser(
            tool_format,
            None,
            shapes,
            special=True,
            checks_names=self.form in _CHECKING,
        )
        self._prefixes = {t[:n] for t in self._ids.special for n in range(1, len(t))}
        self._longest = max(map(len, self._ids.special))
        self._held, self._is_over, self._reply = "", False, Reply()
        self._pieces: list[tuple[str, str]] = []

    def _feed(self, text: str, *, final: bool = False) -> list[tuple[str, str]]:
        """Feed text. The end of a text that may be a part of a special token is held back."""
        assert self._reply is not None
        for end in getattr(self.model_tokenizer, "ends", ()):
            text = text.replace(end, END)
        text, self._held = self._held + text, ""
        for size in range(min(len(text), self._longest), 0, -1):
            if text[-size:] in self._ids.special:
                break
            if text[-size:] in self._prefixes and not final:
                text, self._held = text[:-size], text[-size:]
                break
        pieces: list[tuple[str, str]] = []
        for token in self._ids.encode(text, special=True):
            pieces += self._reply.add(self._parser.feed(Chunk(ids=(token,))))
        if final and not self._is_over:
            self._is_over = True
            pieces += self._reply.add(self._parser.finish("stop"))
        return pieces

    def extract_tool_calls(
        self, model_output: str, request: Any = None, *_: Any, **__: Any
    ) -> ExtractedToolCallInformation:
        self._begin(request, model_output)
        self._feed(model_output, final=True)
        reply, self._reply = self._reply, None
        assert reply is not None
        calls = [
            ToolCall(
                id=call_id or f"chatcmpl-tool-{uuid.uuid4().hex}",
                function=FunctionCall(name=name, arguments=_Json(arguments)),
            )
            for name, arguments, call_id, status in reply.calls
            if status == "completed"
        ]
        return ExtractedToolCallInformation(
            tools_called=bool(calls), tool_calls=calls, content=_text(reply.content)
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str = "",
        current_text: str = "",
        delta_text: str = "",
        *ids_and_request: Any,
        request: Any = None,
        **__: Any,
    ) -> DeltaMessage | None:
        request = ids_and_request[3] if len(ids_and_request) > 3 else request
        is_first = not previous_text and current_text == delta_text
        if self._reply is None or self._is_over or is_first:
            self._begin(request)
        return self._delta(self._feed(delta_text))

    def finish_streaming(self, *_: Any, **__: Any) -> DeltaMessage | None:
        return None if self._reply is None else self._delta(self._feed("", final=True))

    finalize = finish_streaming

    def get_remaining_unstreamed_args(self) -> str:
        """Return the arguments that the end of the reply completes."""
        return "".join(text for kind, text in self._feed("", final=True) if kind == "argument")

    def _parse_arguments(self, text: str) -> dict[str, Any]:
        """Return the arguments of a call of FunctionGemma."""
        return _arguments("functiongemma", text)

    def _delta(self, pieces: list[tuple[str, str]]) -> DeltaMessage | None:
        assert self._reply is not None
        if self.form in _WHOLE_CALLS:
            self._pieces += pieces
            if self._pieces and self._pieces[-1][0] != "content" and not self._is_over:
                return None
            pieces, self._pieces = self._pieces, []
        index = len(self._reply.calls) - sum(kind == "call" for kind, _ in pieces) - 1
        calls: list[DeltaToolCall] = []
        for kind, text in pieces:
            if kind == "call":
                index += 1
                call_id = self._reply.calls[index][2] or f"chatcmpl-tool-{uuid.uuid4().hex}"
                named = DeltaFunctionCall(name=text, arguments="")
                calls.append(
                    DeltaToolCall(id=call_id, type="function", index=index, function=named)
                )
            elif kind == "argument" and calls and calls[-1].index == index:
                calls[-1].function.arguments = (calls[-1].function.arguments or "") + text
            elif kind == "argument":
                calls.append(DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=text)))
        content = "".join(text for kind, text in pieces if kind == "content")
        if not (content or calls):
            return None
        return DeltaMessage(content=_Text(content) if content else None, tool_calls=calls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"an internal of vLLM: {name}")


# --- modules --------------------------------------------------------------------------------------


class _Internal:
    """An internal of vLLM. A test that uses it is skipped."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        pytest.skip(f"an internal of vLLM: {self.__name__}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Internal(f"{self.__name__}.{name}")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (Adapter,)

    def __or__(self, other: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())


class _Vocabulary(dict[str, int]):
    """A vocabulary that contains every token."""

    def __missing__(self, token: str) -> int:
        self[token] = len(self)
        return self[token]

    def get(self, token: str, default: Any = None) -> Any:
        return self[token]

    def __contains__(self, token: object) -> bool:
        return True


class _Tokenizer:
    """A tokenizer whose tokens are tags, and words of a few letters."""

    all_special_tokens: Sequence[str] = ()
    all_special_ids: Sequence[int] = ()
    eos_token_id, bos_token_id, is_fast = 0, 1, True
    _TOKEN = re.compile(
        r"<[^<>\s=]{1,40}>|\[[A-Z_]+\]|\]<\]minimax\[>\[|｜[A-Z]+｜| ?\w{1,5}|\s|.", re.DOTALL
    )

    def __init__(self, *_: Any, **__: Any) -> None:
        self._vocabulary = _Vocabulary()
        #: The tokens that end a reply.
        self.ends: list[str] = []

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> _Tokenizer:
        return cls()

    @property
    def vocab(self) -> dict[str, int]:
        return self._vocabulary

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def add_tokens(self, tokens: Iterable[str]) -> None:
        """Add special tokens. Every tag is one already, so only the ends of replies matter."""
        self.ends += [token for token in tokens if token.startswith("</")]

    def tokenize(self, text: str, *_: Any, **__: Any) -> list[str]:
        return self._TOKEN.findall(text)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return [self._vocabulary[token] for token in self.tokenize(text)]

    def __call__(self, text: str, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(input_ids=self.encode(text))

    def convert_ids_to_tokens(self, ids: Iterable[int], *_: Any, **__: Any) -> list[str]:
        names = {number: token for token, number in self._vocabulary.items()}
        return [names.get(number, "") for number in ids]

    def decode(self, ids: int | Iterable[int], *_: Any, **__: Any) -> str:
        return "".join(self.convert_ids_to_tokens([ids] if isinstance(ids, int) else ids))

    def convert_tokens_to_ids(self, token: str) -> int:
        return self._vocabulary[token]

    def __len__(self) -> int:
        return 100_000

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"a method of tokenizers: {name}")


def _detokenize(tokenizer: Any = None, all_input_ids: Sequence[int] = (), **_: Any) -> Any:
    tokens = tokenizer.convert_ids_to_tokens([all_input_ids[-1]])
    return tokens, tokens[0], 0, 0


@cache
def _registry() -> Mapping[str, str]:
    """Return the classes of vLLM's tool parsers by their registered names."""
    path = _SOURCE / "vllm" / "tool_parsers" / "__init__.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").startswith(
            "_TOOL_PARSERS"
        ):
            return {name: pair[1] for name, pair in ast.literal_eval(node.value).items()}
    return {}


def _adapter(title: str, name: str) -> type[Adapter]:
    try:
        row = SHIPPED.tool_format(_FORMATS.get(name, name))
    except SetupError:
        row = None
    return type(title, (Adapter,), {"form": row and row.name})


@cache
def _class(title: str) -> type[Adapter] | None:
    """Return the adapter of the class ``title``, if it is a registered parser."""
    names = [name for name, cls in _registry().items() if cls == title]
    return _adapter(title, names[0]) if names else None


class _Manager:
    @staticmethod
    def get_tool_parser(name: str) -> type[Adapter]:
        adapter, registered = _adapter(_registry()[name], name), _class(_registry()[name])
        return registered if registered and registered.form == adapter.form else adapter


@cache
def _constants(path: Path) -> Mapping[str, Any]:
    """Return the constants of a module that can be evaluated on their own."""
    found: dict[str, Any] = {}
    if not path.is_file():
        return found
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None:
            try:
                found[target.id] = ast.literal_eval(value)
            except ValueError:
                continue
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
            other = _SOURCE / f"{(node.module or '').replace('.', '/')}.py"
            inner = _constants(other) if other != path else {}
            found |= {a.asname or a.name: inner[a.name] for a in node.names if a.name in inner}
    return found


def _arguments(form: str, text: str) -> dict[str, Any]:
    """Return the arguments of a call that is written with braces. ``text``: what stands between the
    braces."""
    parser, tokenizer = format_parser(SHIPPED.tool_format(form), None, AnyNames(), special=True)
    row = SHIPPED.tool_format(form)
    assert row is not None
    opening, closing = row.written.before, row.written.after
    ids = tokenizer.encode(f"{opening}f{{{text}{closing}", special=True)
    reply = Reply().read(parser, ids, lambda: 1, "stop")
    (call,) = reply.calls
    found: dict[str, Any] = json.loads(call[1])
    return found


def _spelled(value: Any) -> Any:
    """Return a value with texts in the place of numbers and words, which vLLM reads later."""
    if isinstance(value, dict):
        return {key: _spelled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_spelled(each) for each in value]
    return value if isinstance(value, str) else json.dumps(value)


def _parse_gemma4_args(text: str, *, partial: bool = False) -> Any:
    if partial:
        pytest.skip("an internal of vLLM: partial arguments")
    return _spelled(_arguments("gemma4", text))


def _parse_gemma4_array(text: str, *, partial: bool = False) -> Any:
    return _parse_gemma4_args(f"x:[{text}]", partial=partial)["x"]


_SPECIAL: Mapping[str, Any] = {
    "_parse_gemma4_args": _parse_gemma4_args,
    "_parse_gemma4_array": _parse_gemma4_array,
    "AutoTokenizer": _Tokenizer,
    "get_tokenizer": lambda *_, **__: _Tokenizer(),
    "detokenize_incrementally": _detokenize,
    "is_mistral_tokenizer": lambda _: True,
    "ToolParserManager": _Manager,
    "ToolParser": Adapter,
}


class _Module(types.ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._find(name)
        setattr(self, name, value)
        return value

    def _find(self, name: str) -> Any:
        for table in (_PROTOCOL, _SPECIAL):
            if name in table:
                return table[name]
        if (adapter := _class(name)) is not None:
            return adapter
        constants = _constants(_SOURCE / f"{self.__name__.replace('.', '/')}.py")
        return constants.get(name, _Internal(f"{self.__name__}.{name}"))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in _ROOTS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...
