"""Print the events of a response in a terminal: text, reasoning, tool calls, sources, files."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from antiphon.dialects.messages import render_result
from antiphon.errors import InvalidRequest
from antiphon.stream.kinds import KINDS
from antiphon.stream.prompt_forms import CallForm, dump_text
from antiphon.wire import items as it
from antiphon.wire.parsing.items import read_items

from .client import Json

#: Event → style of its delta. Other events print no delta.
_STYLES: Mapping[str, str | None] = {
    "response.output_text.delta": None,
    "response.refusal.delta": None,
    "response.reasoning_text.delta": "dim",
    "response.reasoning.delta": "dim",
    "response.reasoning_summary_text.delta": "dim",
}
#: Control characters are removed: they would let a model control the terminal.
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
_MAX_DETAIL = 400


def printable(text: object) -> str:
    """Return the text without control characters."""
    return str(text).translate(_CONTROLS)


class AnswerPrinter:
    """Prints one answer of the model while the answer streams. ``root_url``: the server's URL, for
    links to files.

    ``text``: the answer's text so far. ``approvals``: the requests for MCP calls that need the
    user's approval.
    """

    def __init__(self, console: Console, root_url: str) -> None:
        self._console = console
        self._root_url = root_url
        self._is_line_open = False
        self._sources: list[str] = []
        self.text = ""
        self.approvals: list[Json] = []
        self.response: Json | None = None

    def print(self, event: Json) -> None:
        """Print one event."""
        kind = event["type"]
        if kind in _STYLES:
            self._print_delta(event["delta"], _STYLES[kind])
            if kind == "response.output_text.delta":
                self.text += event["delta"]
        elif kind == "response.output_text.annotation.added":
            self._add_source(event["annotation"])
        elif kind == "response.output_item.done":
            self._print_item(event["item"])
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._print_end(event["response"])

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line about the answer. ``style``: a style of the library ``rich``."""
        self.end()
        self._console.print(printable(text), style=style, soft_wrap=True)

    def end(self) -> None:
        """End the current line, if the text that was printed last has not ended it."""
        if self._is_line_open:
            self._console.print()
            self._is_line_open = False

    def _print_delta(self, text: str, style: str | None) -> None:
        self._console.print(printable(text), end="", style=style, soft_wrap=True)
        self._is_line_open = not text.endswith("\n")

    def _print_item(self, item: Json) -> None:
        kind = item["type"]
        if kind == "reasoning":
            self._console.print("\n")
            self._is_line_open = False
        elif kind == "mcp_approval_request":
            self.approvals.append(item)
        elif kind == "image_generation_call":
            self._print_image(item)
        elif (call := _describe_call(item)) is not None:
            self._print_call(kind.removesuffix("_call"), *call, item)

    def _print_call(self, name: str, detail: str, result: str, item: Json) -> None:
        failed = " failed" if item.get("status") in ("failed", "incomplete") else ""
        self.note(f"[{name}{failed}] {_shorten(detail)}".rstrip(), style="cyan")
        if result:
            self.note(_indent(_shorten(result)))

    def _print_image(self, item: Json) -> None:
        try:
            content = base64.b64decode(item.get("result") or "", validate=True)
        except (binascii.Error, ValueError):
            content = b""
        if not content:
            return self.note("[image_generation failed]", style="cyan")
        suffix = {"jpeg": ".jpg", "webp": ".webp"}.get(item.get("output_format") or "", ".png")
        with tempfile.NamedTemporaryFile(prefix="antiphon-", suffix=suffix, delete=False) as file:
            file.write(content)
        self.note(f"[image] {Path(file.name).as_uri()}", style="cyan")

    def _add_source(self, annotation: Json) -> None:
        describe = _SOURCES.get(annotation["type"])
        source = describe(annotation, self._root_url) if describe else ""
        if source and source not in self._sources:
            self._sources.append(source)

    def _print_end(self, response: Json) -> None:
        self.response = response
        for number, source in enumerate(self._sources, 1):
            self.note(f"[{number}] {source}")
        for tool in response.get("ignored_tools") or ():
            self.note(f"(ignored tool {_ignored(tool)})")
        if response["status"] == "incomplete":
            self.note(f"(incomplete: {response['incomplete_details']['reason']})")
        if response["status"] == "failed":
            self.note(response["error"]["message"], "red")


def _ignored(tool: object) -> str:
    if not isinstance(tool, dict):
        return str(tool)
    return ": ".join(str(tool[key]) for key in ("type", "reason") if tool.get(key))


def _shorten(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_DETAIL else text[:_MAX_DETAIL] + " …"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


# --- tool calls: what is called, and the result --------------------------------------------------


def _web_search(item: Json) -> tuple[str, str]:
    action = item.get("action") or {}
    queries = action.get("queries") or [action.get("query")]
    return action.get("url") or ", ".join(query for query in queries if query), ""


def _file_search(item: Json) -> tuple[str, str]:
    found = item.get("results") or ()
    return ", ".join(item.get("queries") or ()), "\n".join(each["filename"] for each in found)


def _code(item: Json) -> tuple[str, str]:
    outputs = item.get("outputs") or ()
    return item.get("code") or "", "\n".join(
        out.get("logs") or out.get("url", "") for out in outputs
    )


def _shell(item: Json) -> tuple[str, str]:
    return "\n".join((item.get("action") or {}).get("commands") or ()), ""


def _shell_output(item: Json) -> tuple[str, str]:
    parts = item.get("output") or ()
    if isinstance(parts, str):
        return "", parts
    return "", "\n".join(part.get("stdout", "") + part.get("stderr", "") for part in parts)


#: Item type → what is called, and the result if there is one. Other calls are described as the
#: model sees them.
_CALLS: Mapping[str, Callable[[Json], tuple[str, str]]] = {
    "web_search_call": _web_search,
    "file_search_call": _file_search,
    "code_interpreter_call": _code,
    "shell_call": _shell,
    "shell_call_output": _shell_output,
}


def _describe_call(item: Json) -> tuple[str, str] | None:
    """Return what an item calls, and the result if it contains one. Return None if the item is
    neither a call nor a result, or if this version of the chat does not know its type."""
    if (describe := _CALLS.get(item["type"])) is not None:
        return describe(item)
    try:
        (read,) = read_items([dict(item)], "output")
    except InvalidRequest:
        return None
    kind = KINDS[type(read)]
    if kind.call is None and kind.result is None:
        return None
    result = "" if kind.result is None else render_result(read)
    return "" if kind.call is None else _called(read, kind.call), result


def _called(item: it.Item, form: CallForm) -> str:
    name, arguments = form.read(item)
    text = dump_text(arguments["input"] if form.input else arguments)
    if form.name:
        return text  # the type of the item names the function
    return f"{item.namespace}: {name}({text})" if item.namespace else f"{name}({text})"


# --- sources -------------------------------------------------------------------------------------


def _container_file(annotation: Json, root_url: str) -> str:
    path = f"{annotation['container_id']}/files/{annotation['file_id']}"
    return f"{annotation['filename']}  {root_url}/v1/containers/{path}/content"


#: Annotation type → one line that names the source.
_SOURCES: Mapping[str, Callable[[Json, str], str]] = {
    "url_citation": lambda each, _: f"{each.get('title') or ''}  {each['url']}".strip(),
    "file_citation": lambda each, root: f"{each['filename']}  {root}/v1/files/{each['file_id']}",
    "container_file_citation": _container_file,
}
