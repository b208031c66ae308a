"""The cases of SMG's tests of tool parsers, which are written in Rust.

A test parses one literal completely and compares the number, names and arguments of the calls and
the text before them. Tests of another form are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.parser.tool_call import ToolShape
from tests.dialects.replies import is_bare
from tests.format_suites.replies import AnyNames, Reply, format_parser, loaded, plain

#: Class of a parser in SMG → our tool format.
_FORMATS: Mapping[str, str] = {
    "CohereParser": "cohere",
    "DeepSeekParser": "deepseek_v3",
    "DeepSeek31Parser": "deepseek_v31",
    "Glm4MoeParser": "glm45",
    "InklingParser": "inkling",
    "KimiK2Parser": "kimi_k2",
    "LlamaParser": "llama3_json",
    "MinimaxM2Parser": "minimax_m2",
    "MistralParser": "mistral",
    "PythonicParser": "pythonic",
    "QwenParser": "hermes",
    "QwenXmlParser": "qwen3_coder",
    "QwenCoderParser": "qwen3_coder",
    "Step3Parser": "step3",
}
_TEST = re.compile(
    r"#\[(?:tokio::)?test[^\]]*\]\s*(?:async )?fn (\w+)\(\)\s*\{(.*?)\n\}", re.DOTALL
)
_LITERAL = re.compile(r'r(#*)"(.*?)"\1|"((?:\\.|[^"\\])*)"', re.DOTALL)
_CALLS = r"(?:tools|tool_calls|calls)"
_ARGUMENT = re.compile(
    r'assert_eq!\(\s*args(\d*)\["([^"]+)"\]((?:\["[^"]+"\]|\[\d+\])*),\s*(.*?)\s*\);', re.DOTALL
)


class _Case(Struct):
    name: str
    form: str
    output: str
    count: int | None
    names: dict[int, str]
    #: Number of the call, path of the value, and the value.
    arguments: list[tuple[int, list[str | int], Any]]
    text: str | None
    #: Whether the case also accepts that there are no calls.
    is_optional: bool


def _literal(source: str, at: int) -> str | None:
    found = _LITERAL.match(source, at)
    if found is None:
        return None
    if found[3] is None:
        return found[2]
    text = re.sub(r"\\\n\s*", "", found[3])
    text = re.sub(r"\\u\{([0-9a-fA-F]+)\}", lambda code: chr(int(code[1], 16)), text)
    escapes = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
    return re.sub(r"\\(.)", lambda code: escapes.get(code[1], code[1]), text, flags=re.DOTALL)


def _value(text: str) -> Any:
    """Return the value of a Rust expression. Raises ``ValueError`` if it is no literal."""
    text = text.strip().rstrip(",").strip()
    if (literal := _literal(text, 0)) is not None:
        return literal
    if "Null" in text:
        return None
    if macro := re.fullmatch(r"json!\((.*)\)", text, re.DOTALL):
        text = macro[1]
    return json.loads(text.replace("_", "") if re.fullmatch(r"-?[\d_.eE+-]+", text) else text)


def _cases(source: str) -> Iterator[_Case]:
    for name, body in _TEST.findall(source):
        parser = re.search(r"(\w+Parser)::(\w+)\(", body)
        argument = re.findall(r"parse_complete\(\s*&?(\w+)\s*\)", body)
        if parser is None or len(argument) != 1 or body.count("parse_complete(") != 1:
            continue
        form = _FORMATS.get(parser[1], "")
        if parser[1] == "DeepSeekDsmlParser":
            form = "deepseek_v4" if parser[2] == "v4" else "deepseek_v32"
        start = re.search(rf"let {argument[0]}(?:: &str)?\s*=\s*", body)
        output = _literal(body, start.end()) if start else None
        if form and output is not None and (case := _case(name, form, output, body)) is not None:
            yield case


def _case(name: str, form: str, output: str, body: str) -> _Case | None:
    count = re.search(rf"assert_eq!\({_CALLS}\.len\(\),\s*(\d+)", body)
    is_empty = re.search(rf"assert!\({_CALLS}\.is_empty\(\)", body) is not None
    pattern = rf'assert_eq!\(\s*{_CALLS}\[(\d+)\]\.function\.name,\s*"([^"]+)"'
    names = {int(number): each for number, each in re.findall(pattern, body)}
    if count is None and not is_empty and not names:
        return None
    arguments: list[tuple[int, list[str | int], Any]] = []
    for number, key, rest, expression in _ARGUMENT.findall(body):
        steps = re.findall(r'\["([^"]+)"\]|\[(\d+)\]', rest)
        try:
            value = _value(expression)
        except ValueError:
            continue
        arguments.append((int(number or 0), [key, *(k or int(n) for k, n in steps)], value))
    if arguments and all(number for number, _, _ in arguments):  # counted from 1
        arguments = [(number - 1, path, value) for number, path, value in arguments]
    text = re.search(r"assert_eq!\(\s*(?:normal_text|text|content),\s*", body)
    return _Case(
        name=name,
        form=form,
        output=output,
        count=int(count[1]) if count else 0 if is_empty else None,
        names=names,
        arguments=arguments,
        text=_literal(body, text.end()) if text else None,
        is_optional=re.search(rf"if !{_CALLS}\.is_empty\(\)", body) is not None,
    )


def _shapes(case: _Case) -> Mapping[str, ToolShape]:
    """Return the tools of a case, which states none. Where only the name of a tool marks a call,
    these are the names that look like one; otherwise, any name is a tool's."""
    form = TOOLS[case.form]
    if not (is_bare(form) or form.doubtful):
        return AnyNames()
    names = re.findall(r'"(?:name|tool_name|function)"\s*:\s*"([^"]+)"', case.output)
    names += re.findall(r"([A-Za-z_][\w.]*)\(", case.output)
    return {name: ToolShape(wire_name=name) for name in names}


def _difference(case: _Case, reply: Reply) -> str:
    calls = [call for call in reply.calls if call[3] == "completed"]
    if case.count is not None and len(calls) != case.count:
        return f"{len(calls)} calls, expected {case.count}"
    if not calls and case.is_optional:
        return ""
    for number, name in case.names.items():
        if number >= len(calls) or calls[number][0] != name:
            return f"call {number} is not {name}"
    for number, path, expected in case.arguments:
        value: Any = loaded(calls[number][1]) if number < len(calls) else None
        try:
            for step in path:
                value = value[step]
        except (KeyError, IndexError, TypeError):
            return f"{path} is missing"
        if value != expected:
            return f"{path} is {value!r}, expected {expected!r}"
    # SMG's parsers drop the text after the first call.
    if case.text is not None and plain(case.text) not in (plain(reply.lead), plain(reply.content)):
        return f"text {reply.content!r}, expected {case.text!r}"
    return ""


def _check(case: _Case) -> str:
    difference = ""
    for special in (True, False):
        parser, tokenizer = format_parser(
            TOOLS[case.form], REASONING.get(case.form), _shapes(case), special=special
        )
        ids = tokenizer.encode(case.output, special=True)
        reply = Reply().read(parser, ids, lambda: 1, "stop")
        difference = _difference(case, reply)
        if not difference:
            break
    return difference


def run(folder: Path) -> tuple[Counter[str], list[str]]:
    """Check all cases. Returns the counts and the differences."""
    counts: Counter[str] = Counter()
    differences: list[str] = []
    for path in sorted((folder / "crates" / "tool_parser" / "tests").glob("tool_parser_*.rs")):
        for case in _cases(path.read_text(encoding="utf-8")):
            difference = _check(case)
            counts["differ" if difference else "agree"] += 1
            if difference:
                differences.append(f"{case.name}: {difference}")
    return counts, differences
