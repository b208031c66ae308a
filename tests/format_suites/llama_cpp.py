"""The cases of llama.cpp's ``tests/test-chat.cpp``, on the published templates and on harmony.

A case is a chain of calls such as ``tst.test("output").tools({special_function}).expect(…).run()``.
The literals and variables of the chains are read from the C++ source.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from antiphon.dialects.base import Dialect
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.dialects.formats.registry import SHIPPED
from antiphon.dialects.harmony.dialect import HarmonyDialect
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import ModelCard
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire.items import InputText, Message
from antiphon.wire.response import ReasoningConfig
from antiphon.wire.tools import Function
from tests.format_suites.replies import Reply, loaded, plain, tags_of
from tests.real.harmony import HarmonyTokenizer, harmony_encoding

_TOKEN = re.compile(
    r'R"(?P<mark>[^\s()\\]{0,16})\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:\\.|[^"\\])*)"'
    r"|'(?:\\.|[^'\\])'|//[^\n]*|/\*.*?\*/|(?P<name>[A-Za-z_][\w:]*)|(?P<number>\d+)|\s+|(?P<sign>.)",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
#: Variables that the source computes from others.
_TEMPLATES = {
    "$template_path": "models/templates/LFM2.5-Instruct.jinja",
    "$path": "models/templates/Qwen-Qwen2.5-7B-Instruct.jinja",
}
_NO_REASONING = (None, "COMMON_REASONING_FORMAT_NONE")
_TODAY = datetime(2026, 7, 9)

Token = tuple[str, str]
Tokens = Sequence[Token]


class Case(Struct):
    """One case. ``settings``: method → its argument, for methods that this program does not need to
    understand."""

    line: int
    template: str
    output: str = ""
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    tools: list[tuple[str, str, str]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)


class _Unreadable(Exception):
    """The chain uses a variable or a function that this program cannot evaluate."""


def _unescape(text: str) -> str:
    def decode(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xu":
            return chr(int(code[1:], 16)) if code[0] == "u" else f"\udc00{code[1:]}"
        return _ESCAPES.get(code, code)

    text = re.sub(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|.)", decode, text, flags=re.DOTALL)
    # Bytes that are written one by one form characters.
    return re.sub(
        "(?:\udc00[0-9a-fA-F]{2})+",
        lambda found: bytes.fromhex(found[0].replace("\udc00", "")).decode("utf-8", "replace"),
        text,
    )


class _Source:
    """The tokens of a C++ source, with the position of each."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.positions: list[int] = []
        for found in _TOKEN.finditer(text):
            kind, value = found.lastgroup, found.group()
            if found["raw"] is not None:
                token = ("text", found["raw"])
            elif kind == "text":
                token = ("text", _unescape(found["text"]))
            elif kind in ("name", "number", "sign"):
                token = (kind, value)
            else:
                continue
            self.tokens.append(token)
            self.positions.append(found.start())

    def is_sign(self, at: int, sign: str) -> bool:
        return at < len(self.tokens) and self.tokens[at] == ("sign", sign)

    def name(self, at: int) -> str:
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def closing(self, at: int) -> int:
        """Return the position of the bracket that closes the one at ``at``."""
        depth = 0
        for n in range(at, len(self.tokens)):
            kind, value = self.tokens[n]
            depth += (kind == "sign") * ((value in "([{") - (value in ")]}"))
            if not depth:
                return n
        raise _Unreadable("brackets")


def _split(tokens: Tokens) -> list[list[Token]]:
    """Split arguments at their commas."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for kind, value in tokens:
        if kind == "sign":
            depth += (value in "([{") - (value in ")]}")
        if (kind, value) == ("sign", ",") and not depth:
            parts.append([])
        else:
            parts[-1].append((kind, value))
    return parts if parts[-1] else parts[:-1]


class _Reader:
    """Evaluates the definitions and the chains of a source, from its start to its end."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.strings: dict[str, str] = {}
        self.tools: dict[str, tuple[str, str, str]] = {}
        self.messages: dict[str, Case] = {}
        self.template = ""
        self.skipped = 0

    def cases(self) -> Iterator[Case]:
        for at in range(len(self.source.tokens)):
            self._read_definition(at)
            if self._is_test(at):
                try:
                    yield self._read_case(at)
                except (_Unreadable, IndexError, ValueError):
                    self.skipped += 1

    def _read_definition(self, at: int) -> None:
        source, name = self.source, self.source.name(at)
        try:
            if name == "common_chat_tool" and source.is_sign(at + 2, "{"):
                parts = _split(source.tokens[at + 3 : source.closing(at + 2)])
                first, second, third = map(self._string, parts)
                self.tools[source.name(at + 1)] = (first, second, third)
            elif (
                name == "common_chat_msg"
                and source.is_sign(at + 2, "=")
                and source.is_sign(at + 4, "(")
            ):
                arguments = _split(source.tokens[at + 5 : source.closing(at + 4)])
                self.messages[source.name(at + 1)] = self._message(source.name(at + 3), arguments)
            elif name == "std::string" and source.is_sign(at + 2, "="):
                end = next(n for n in range(at, len(source.tokens)) if source.is_sign(n, ";"))
                self.strings.pop(source.name(at + 1), None)
                self.strings[source.name(at + 1)] = self._string(source.tokens[at + 3 : end])
            elif (
                name == "peg_tester" and source.is_sign(at - 1, "=") and source.is_sign(at + 1, "(")
            ):
                kind, value = source.tokens[at + 2]
                self.template = value if kind == "text" else _TEMPLATES.get(f"${value}", value)
        except (_Unreadable, IndexError, ValueError):
            return

    def _is_test(self, at: int) -> bool:
        source = self.source
        return (
            source.name(at) in ("tst", "tst2")
            and source.is_sign(at + 1, ".")
            and source.name(at + 2) == "test"
        )

    def _read_case(self, at: int) -> Case:
        source = self.source
        # The second tester of the source compares two templates of one model.
        is_pair = self.template.endswith("Kimi-K2-Instruct.jinja")
        template = self.template
        if source.name(at) == "tst2":
            template = "models/templates/Kimi-K2-Instruct.jinja"
        elif is_pair:
            template = "models/templates/moonshotai-Kimi-K2.jinja"
        line = source.text.count("\n", 0, source.positions[at]) + 1
        end = source.closing(at + 3)
        case = Case(line=line, template=template, output=self._string(source.tokens[at + 4 : end]))
        while source.is_sign(end + 1, ".") and source.name(end + 2) != "run":
            name, start = source.name(end + 2), end + 3
            end = source.closing(start)
            self._apply(case, name, source.tokens[start + 1 : end])
        return case

    def _apply(self, case: Case, name: str, tokens: Tokens) -> None:
        if name == "expect":
            parts = _split(tokens)
            message = (
                self.messages.get(parts[0][0][1])
                if len(tokens) == 1
                else self._message(tokens[0][1], _split(tokens[2:-1]))
            )
            if message is None:
                raise _Unreadable(name)
            case.content, case.reasoning, case.calls = (
                message.content,
                message.reasoning,
                message.calls,
            )
        elif name in ("expect_content", "expect_reasoning"):
            setattr(case, name.removeprefix("expect_"), self._string(tokens))
        elif name == "expect_tool_calls":
            case.calls = [self._call(part[1:-1]) for part in _split(tokens[1:-1])]
        elif name == "tools":
            parts = _split(tokens[1:-1]) if tokens and tokens[0][1] == "{" else [list(tokens)]
            if any(len(part) != 1 or part[0][1] not in self.tools for part in parts):
                raise _Unreadable(name)
            case.tools = [self.tools[part[0][1]] for part in parts]
        elif name == "json_schema":
            self._string(tokens)
        else:
            case.settings[name] = tokens[0][1] if tokens else ""

    def _call(self, tokens: Tokens) -> tuple[str, str]:
        name, arguments = (self._string(part) for part in _split(tokens)[:2])
        return name, arguments

    def _message(self, function: str, arguments: list[list[Token]]) -> Case:
        texts = [self._string(part) if part[0][1] != "{" else "" for part in arguments]
        texts += [""] * (4 - len(texts))
        made = Case(line=0, template="")
        match function:
            case "simple_assist_msg":
                made.content, made.reasoning = texts[0], texts[1]
                made.calls = [(texts[2], texts[3])] if texts[2] or texts[3] else []
            case "message_with_tool_calls":
                made.calls = [(texts[0], texts[1])]
            case "message_with_tool_calls_and_reasoning":
                made.reasoning, made.calls = texts[2], [(texts[0], texts[1])]
            case "message_with_content_and_tool_call":
                made.content, made.calls = texts[0], [(texts[1], texts[2])]
            case "message_with_reasoning_and_tool_call":
                made.reasoning, made.calls = texts[0], [(texts[1], texts[2])]
            case "message_with_reasoning_content_and_multiple_tool_calls":
                made.reasoning, made.content = texts[0], texts[1]
                made.calls = [self._call(part[1:-1]) for part in _split(arguments[2][1:-1])]
            case _:
                raise _Unreadable(function)
        return made

    def _string(self, tokens: Tokens) -> str:
        out: list[str] = []
        for kind, value in tokens:
            if kind == "text":
                out.append(value)
            elif kind == "name" and value in self.strings:
                out.append(self.strings[value])
            elif (kind, value) not in {
                ("sign", "+"),
                ("sign", "("),
                ("sign", ")"),
                ("name", "std::string"),
            }:
                raise _Unreadable(value)
        return "".join(out)


def read_cases(folder: Path) -> list[Case]:
    """Return the cases of a source tree of llama.cpp."""
    text = (folder / "tests" / "test-chat.cpp").read_text(encoding="utf-8")
    return list(_Reader(_Source(text)).cases())


_TAG = re.compile(r"<\|[^|<>\s]{1,40}\|?>|<[a-z_/]+\|>|<｜[^｜<>\s]{1,40}｜>|\[/?[A-Z_]{3,}\]")
_LFM_TAGS = {f"<|tool_{what}_{end}|>" for what in ("call", "list") for end in ("start", "end")}


@cache
def _chat_dialect(path: Path) -> tuple[Dialect, ByteTokenizer]:
    template = path.read_text(encoding="utf-8")
    reasoning, tools = SHIPPED.detect(template, ())
    tags = set(_TAG.findall(template)) | set(
        tags_of(
            SHIPPED.tool_format(tools) if tools else None,
            SHIPPED.reasoning_format(reasoning) if reasoning else None,
        )
    )
    tags = {tag for tag in tags if "DSML" not in tag} | (
        {"｜DSML｜"} if "DSML" in template else set()
    )
    tokenizer = ByteTokenizer(tuple(sorted(tags | (_LFM_TAGS if "LFM2" in path.name else set()))))
    card = ModelCard(
        name="m",
        chat_template=template,
        bos_token="<s>",
        eos_token="</s>",
        context_size=32_768,
        fingerprint="f",
    )
    return ChatDialect(card, tokenizer, today=lambda: _TODAY), tokenizer


@cache
def _harmony_dialect() -> tuple[Dialect, Any]:
    encoding = harmony_encoding()
    tokenizer = HarmonyTokenizer(encoding)
    card = ModelCard(name="m", context_size=4096, architecture="gpt-oss", fingerprint="f")
    return HarmonyDialect(card, tokenizer, encoding, today=lambda: _TODAY), tokenizer


def _parse(case: Case, dialect: Dialect, tokenizer: Any, size: Callable[[], int]) -> Reply:
    tools = tuple(
        Function(name=name, description=description, parameters=json.loads(schema))
        for name, description, schema in case.tools
    )
    effort: Any = "none" if case.settings.get("enable_thinking") == "false" else "medium"
    options = Options(
        tools=tools,
        parallel_tool_calls=case.settings.get("parallel_tool_calls") != "false",
        reasoning=ReasoningConfig(effort=effort),
    )
    hello = Message(role="user", content=(InputText(text="Hey there!"),))
    parser = dialect.render(Conversation((hello,)), options).parser
    reason: Any = "length" if case.settings.get("is_partial") == "true" else "stop"
    return Reply().read(parser, tokenizer.encode(case.output, special=True), size, reason)


def _difference(case: Case, reply: Reply) -> str:
    if plain(case.content) != plain(reply.content):
        return f"content {reply.content!r}, expected {case.content!r}"
    if plain(case.reasoning) != plain(reply.reasoning):
        return f"reasoning {reply.reasoning!r}, expected {case.reasoning!r}"
    found = [(name, loaded(arguments)) for name, arguments, *_ in reply.calls]
    expected = [(name, loaded(arguments)) for name, arguments in case.calls]
    return "" if found == expected else f"calls {found}, expected {expected}"


def run(folder: Path, *, harmony: bool) -> tuple[Counter[str], list[str]]:
    """Check the cases, those of gpt-oss or all others. Returns the counts and the differences."""
    counts: Counter[str] = Counter()
    differences: list[str] = []
    for case in read_cases(folder):
        settings = case.settings
        if ("gpt-oss" in case.template) is not harmony:
            continue
        if "continue_final_message" in settings or "messages" in settings:
            counts["other"] += 1  # about prompts, which are rendered differently here
            continue
        dialect, tokenizer = (
            _harmony_dialect() if harmony else _chat_dialect(folder / case.template)
        )
        sizes: tuple[Callable[[], int], ...] = (
            lambda: 1,
            lambda: 10**9,
            partial(random.Random(case.line).randint, 1, 7),
        )
        replies = [_parse(case, dialect, tokenizer, size) for size in sizes]
        difference = _difference(case, replies[0])
        if replies[1:] != replies[:1] * 2:
            difference = "the chunking matters"
        if (
            difference
            and settings.get("reasoning_format") in _NO_REASONING
            and (replies[0].reasoning and not case.reasoning)
        ):
            counts["other"] += 1  # asks for reasoning within the answer
        elif difference:
            counts["differ"] += 1
            differences.append(f"line {case.line}: {difference}")
        else:
            counts["agree"] += 1
    return counts, differences
