"""Translate messages of the Messages API to input items of the Responses API.

One message may become several items: reasoning, text, tool calls and their results. This module
checks the structure that is specific to the Messages API. ``wire.parsing`` checks the resulting
items.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Mapping
from typing import get_args

import msgspec
from msgspec.structs import replace

from antiphon.compat.error_paths import ErrorPaths
from antiphon.errors import invalid_field, unsupported_parameter
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import (
    empty_value,
    invalid_type,
    invalid_value,
    json_type_name,
)
from antiphon.wire.parsing.fields import (
    read_choice,
    read_inner,
    read_object,
    read_objects,
    read_string,
    read_tag,
    require,
)
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits

from .bodies import ServerResult
from .citations import PartPlace, Passages, Source, cites
from .context_edits import estimated_tokens
from .server_blocks import text_of_result
from .tools import ToolCollector
from .toolsets import browser_state_text
from .types import ClearedThinking

_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
#: Start of Claude Code's first system block. This block is left out: it is meant for Anthropic's
#: servers, and its value changes, so the prefix cache would never match the prompt.
_BILLING_HEADER = "x-anthropic-billing-header:"
_CONTAINER_FOLDER = "/mnt/data"
#: Largest number of blocks inside a document or a search result.
_MAX_BLOCKS = DEFAULT_LIMITS.containers
_FAILED = "The tool call failed."
_PDF = "application/pdf"


def read_system(raw: object, path: str, limits: BodyLimits) -> str:
    """Return the text of ``system``, which is a string or an array of text blocks. Raises
    ``InvalidRequest``."""
    if isinstance(raw, str):
        return raw
    texts = _texts(raw, path, limits.parts, "a string or an array")
    return "\n\n".join(text for text in texts if text and not text.startswith(_BILLING_HEADER))


def read_messages(
    raw: object,
    path: str,
    tools: ToolCollector,
    paths: ErrorPaths,
    limits: BodyLimits,
    *,
    passages: Passages,
    thinking_turns: int | None = None,
    may_be_empty: bool = False,
) -> tuple[list[JsonObject], tuple[ClearedThinking, ...]]:
    """Translate ``messages`` to input items, in the JSON form of the Responses API. Also return
    which thinking was left out.

    ``path``: the field's name in error messages. ``tools`` receives the tools that messages add.
    ``paths`` records from which field of ``messages`` each item was read. ``thinking_turns``:
    number of most recent answers whose thinking the model sees. None means all answers.
    ``passages`` receives the passages of documents that can be cited. ``may_be_empty``: whether the
    array may be empty. Raises ``InvalidRequest``.
    """
    messages = list(read_objects(raw, path, limits.items))
    if not messages:
        if may_be_empty:
            return [], ()
        raise empty_value(path, messages)
    reader = _MessageReader(tools, paths, limits, passages)
    roles = [message.get("role") for message, _ in messages]
    answers, requests = roles.count("assistant"), roles.count("user")
    for role, (message, at) in zip(roles, messages, strict=True):
        reader.shows_thinking = thinking_turns is None or answers <= thinking_turns
        reader.read(message, at, has_reply=requests > 0)
        answers -= role == "assistant"
        requests -= role == "user"
    if roles[-1] == "assistant":
        reader.leave_open()
    return reader.items, reader.cleared()


class _MessageReader:
    """Translates messages one by one and adds the results to ``items``. ``paths`` records from
    which field of the client's messages each item was read, so that error messages can name the
    client's field."""

    def __init__(
        self, tools: ToolCollector, paths: ErrorPaths, limits: BodyLimits, passages: Passages
    ) -> None:
        self.items: list[JsonObject] = []
        #: Whether the thinking of the next message is shown to the model.
        self.shows_thinking = True
        #: Path of a message whose thinking was left out → the number of its tokens.
        self._cleared: Counter[str] = Counter()
        self._tools = tools
        self._paths = paths
        self._passages = passages
        self._limits = limits
        self._role = ""
        #: The open message item, to which further parts are added.
        self._open: JsonObject | None = None
        #: Whether the last text of the open message has citations, so the next one continues it.
        self._continues = False
        #: Id of a block with a call of a server tool → the block.
        self._server_calls: dict[str, JsonObject] = {}

    def read(self, fields: JsonObject, path: str, *, has_reply: bool) -> None:
        """Translate one message. ``has_reply``: whether a later message has the role ``user``. In
        this case, the text of a system message with ``clear_at: next_user_message`` is left out."""
        role = read_tag(fields, path, BLOCKS, "role")
        require(fields, path, "content")
        if fields.get("output_config"):
            self._effort(fields["output_config"], role, f"{path}.output_config")
        clear_at = fields.get("clear_at", "never")
        read_choice(clear_at, f"{path}.clear_at", ("never", "next_user_message"))
        self._role, self._open = role, None
        is_hidden = clear_at == "next_user_message" and has_reply
        self._read_content(fields["content"], f"{path}.content", is_hidden=is_hidden)

    def _read_content(self, raw: object, path: str, *, is_hidden: bool) -> None:
        if isinstance(raw, str):
            raw = [{"type": "text", "text": raw}]
        known = BLOCKS[self._role]
        blocks = read_objects(raw, path, self._limits.parts, "a string or an array")
        for fields, at in blocks:
            kind = read_tag(fields, at, known)
            if not (is_hidden and kind == "text"):
                known[kind](self, fields, at)

    def _effort(self, raw: object, role: str, path: str) -> None:
        """Add an item that changes the reasoning effort for the rest of the conversation, because a
        system message sets ``effort``. Raises ``InvalidRequest``."""
        config = read_object(raw, path)
        for name in config:
            if name != "effort" or role != "system":
                raise unsupported_parameter(f"{path}.{name}")
        item: JsonObject = {"type": "configuration_update", "reasoning": config}
        self._add(item, path, **{"reasoning.effort": "effort"})

    def cleared(self) -> tuple[ClearedThinking, ...]:
        """Return how much thinking was left out, if any."""
        if not self._cleared:
            return ()
        turns, tokens = len(self._cleared), self._cleared.total()
        return (ClearedThinking(cleared_thinking_turns=turns, cleared_input_tokens=tokens),)

    def leave_open(self) -> None:
        """Mark the last message as incomplete. The model then continues the text of this message
        instead of writing a new message ("prefill")."""
        if self._open is not None:
            self._open["status"] = "incomplete"

    def _add(self, item: JsonObject, path: str, **renamed: str) -> None:
        self._open = None
        item_path = f"input[{len(self.items)}]"
        self._paths.add(item_path, path)
        for field, client_field in renamed.items():
            self._paths.add(f"{item_path}.{field}", f"{path}.{client_field}")
        self.items.append(item)

    def _add_parts(self, parts: list[JsonObject], path: str) -> None:
        """Add parts to the open message item. If no message item is open, create a new one."""
        if not parts:
            return
        if self._open is None:
            message: JsonObject = {"type": "message", "role": self._role, "content": []}
            self._add(message, path.rpartition("[")[0].removesuffix(".content"))
            self._open = message
        content = self._open["content"]
        for part in parts:
            self._note_part(PartPlace(len(self.items) - 1, "content", len(content)), path)
            content.append(part)

    def _note_part(self, place: PartPlace, path: str) -> None:
        self._passages.place(place, path)
        self._paths.add(str(place), path)
        for field in ("image_url", "file_data", "file_url", "file_id"):
            self._paths.add(f"{place}.{field}", f"{path}.source")

    # --- blocks of the user and the system -------------------------------------------------------

    def _input(self, fields: JsonObject, path: str) -> None:
        self._add_parts(self._parts(fields["type"], fields, path), path)

    def _container_upload(self, fields: JsonObject, path: str) -> None:
        """Put a file into the container of the code execution, and tell the model."""
        id = self._tools.upload(fields, path)
        self._add_parts([_input_text(f"[The file {id} is in {_CONTAINER_FOLDER}.]")], path)

    def _parts(self, kind: str, fields: JsonObject, path: str) -> list[JsonObject]:
        """Return the input parts of a block. The texts of blocks that can be cited are numbered."""
        if kind == "document":
            return _document(fields, path, self._passages)
        if kind == "search_result":
            return _search_result_part(fields, path, self._passages)
        return _PARTS[kind](fields, path)

    def _tool_result(self, fields: JsonObject, path: str) -> None:
        call_id = read_string(fields, "tool_use_id", path)
        parts, part_paths = self._result_parts(fields.get("content", ""), f"{path}.content")
        if fields.get("is_error", False) is True:
            parts, part_paths = [_input_text(_FAILED), *parts], [path, *part_paths]
        for index, part_path in enumerate(part_paths):
            self._note_part(PartPlace(len(self.items), "output", index), part_path)
        item = {"type": "function_call_output", "call_id": call_id, "output": parts or ""}
        self._add(item, path, call_id="tool_use_id", output="content")

    def _result_parts(self, raw: object, path: str) -> tuple[list[JsonObject], list[str]]:
        if isinstance(raw, str):
            return ([_input_text(raw)] if raw else []), [path]
        parts: list[JsonObject] = []
        part_paths: list[str] = []
        blocks = read_objects(raw, path, self._limits.parts, "a string or an array")
        for fields, at in blocks:
            kind = read_tag(fields, at, (*_PARTS, *_CITABLE, "tool_reference"))
            if kind == "tool_reference":
                new = [self._loaded_tool(fields, at)]
            else:
                new = self._parts(kind, fields, at)
            parts += new
            part_paths += [at] * len(new)
        return parts, part_paths

    def _loaded_tool(self, fields: JsonObject, path: str) -> JsonObject:
        """Let the model use a tool to which a tool result refers. Such results come from a tool
        search that the client runs itself. Returns a text part that tells the model about the
        tool."""
        name = read_string(fields, "tool_name", path)
        self._tools.add(name, f"{path}.tool_name")
        return _input_text(f"The tool {name} can be called now.")

    def _tool_addition(self, fields: JsonObject, path: str) -> None:
        tool = read_inner(fields, "tool", path)
        path = f"{path}.tool"
        if read_tag(tool, path, ("tool_reference", "tool_definition")) == "tool_reference":
            self._tools.add(tool.get("name"), f"{path}.name")
        else:
            self._tools.define(tool.get("definition"), f"{path}.definition")

    def _tool_removal(self, fields: JsonObject, path: str) -> None:
        tool = read_inner(fields, "tool", path)
        read_tag(tool, f"{path}.tool", ("tool_reference",))
        self._tools.remove(tool.get("name"), f"{path}.tool.name")

    # --- blocks of the assistant -----------------------------------------------------------------

    def _output_text(self, fields: JsonObject, path: str) -> None:
        """Translate a text. The blocks of an answer that cites documents become one text again."""
        text = _text(fields, path)
        raw = fields.get("citations") or []
        citations = [each for each, _ in read_objects(raw, f"{path}.citations", self._limits.parts)]
        text += "".join(map(self._passages.mark, citations))
        content = self._open["content"] if self._open is not None else []
        if content and (citations or self._continues):
            content[-1]["text"] += text
        else:
            self._add_parts([{"type": "output_text", "text": text}] if text else [], path)
        self._continues = bool(citations)

    def _thinking(self, fields: JsonObject, path: str) -> None:
        """Translate a thinking block. Its signature contains the encrypted reasoning."""
        text, signature = (_string(fields, name, path) for name in ("thinking", "signature"))
        self._reasoning(text, signature, path, "signature")

    def _redacted_thinking(self, fields: JsonObject, path: str) -> None:
        self._reasoning("", _string(fields, "data", path), path, "data")

    def _reasoning(self, text: str, encrypted: str, path: str, field: str) -> None:
        if not (text or encrypted):
            return
        if not self.shows_thinking:
            self._cleared[path.partition(".")[0]] += estimated_tokens(text or encrypted)
            return
        item: JsonObject = {"type": "reasoning"}
        if text:
            item["content"] = [{"type": "reasoning_text", "text": text}]
        if encrypted:
            item["encrypted_content"] = encrypted
        self._add(item, path, encrypted_content=field)

    def _tool_use(self, fields: JsonObject, path: str) -> None:
        read_inner(fields, "input", path)  # only a check: nulls in the input must be kept
        item: JsonObject = {
            "type": "function_call",
            "call_id": read_string(fields, "id", path),
            "name": read_string(fields, "name", path),
            "arguments": msgspec.json.encode(fields["input"]).decode(),
        }
        if (toolset := fields.get("toolset_name")) is not None:
            item["namespace"] = toolset
        self._add(item, path, call_id="id", arguments="input", namespace="toolset_name")

    def _server_tool_use(self, fields: JsonObject, path: str) -> None:
        """Note the call of a server tool. Together with its result, a later block, it becomes one
        item. A call without a result was interrupted and is left out."""
        read_inner(fields, "input", path)
        read_string(fields, "name", path)
        self._server_calls[read_string(fields, "id", path)] = fields

    def _server_tool_result(self, fields: JsonObject, path: str) -> None:
        """Translate the result of a server tool. If this server does not run the tool, the item is
        a call of a function with the tool's name."""
        id = read_string(fields, "tool_use_id", path)
        call = self._server_calls.pop(id, None)
        if call is None:
            raise invalid_field(
                f"{path}.tool_use_id", "no earlier block calls a tool with this id."
            )
        content = fields.get("content", [])
        match fields["type"]:
            case "web_search_tool_result":
                items = [_web_search_call(call, content, path)]
            case "web_fetch_tool_result":
                items = [_web_fetch_call(call, content, path)]
            case "mcp_tool_result":
                items = [_mcp_call(call, fields, path)]
            case "code_execution_tool_result":
                items = [_code_call(call, content, self._tools.container.id)]
            case "tool_search_tool_result":
                items = self._tool_search(call, content, path)
            case _:
                items = _function_call(id, call, content)
        for item in items:
            self._add(item, path)

    def _tool_search(self, call: JsonObject, content: object, path: str) -> list[JsonObject]:
        """Return the items of a tool search. References to tools that the request does not declare
        any more are left out."""
        found = content.get("tool_references", []) if isinstance(content, dict) else []
        names = [
            read_string(each, "tool_name", at)
            for each, at in read_objects(found, f"{path}.content.tool_references", 100)
        ]
        id = {"call_id": call["id"]}
        return [
            {"type": "tool_search_call", "arguments": call["input"], **id},
            {"type": "tool_search_output", "tools": self._tools.references(names), **id},
        ]

    def _compaction(self, fields: JsonObject, path: str) -> None:
        """Translate a compaction, which replaces what is before it. One without encrypted content
        comes from another server, so the model sees only its summary. One without a summary has
        failed there, and is left out."""
        content, encrypted = (
            "" if fields.get(name) is None else _string(fields, name, path)
            for name in ("content", "encrypted_content")
        )
        known = BLOCKS["system"]
        changes = fields.get("tool_changes") or []
        for change, at in read_objects(changes, f"{path}.tool_changes", 1_000):
            known[read_tag(change, at, ("tool_addition", "tool_removal"))](self, change, at)
        if encrypted:
            item = {"type": "compaction", "encrypted_content": encrypted}
            self._add(item, path, encrypted_content="encrypted_content")
        elif content:
            self.items.clear()
            self._passages.forget()
            text = f"Summary of the conversation so far: {content}"
            self._add({"type": "message", "role": "user", "content": [_input_text(text)]}, path)

    def _mcp_listing(self, fields: JsonObject, path: str) -> None:
        """Leave out the listing of an MCP server: the server lists its tools again."""


def _web_search_call(call: JsonObject, raw: object, path: str) -> JsonObject:
    results = [
        _search_result(each, f"{path}.content[{index}]")
        for index, each in enumerate(raw if isinstance(raw, list) else [])
    ]
    sources = [{"type": "url", "url": result["url"]} for result in results]
    action = {**call["input"], "type": "search", "sources": sources}
    item: JsonObject = {"type": "web_search_call", "action": action}
    return item | ({"results": results} if isinstance(raw, list) else {"status": "failed"})


def _web_fetch_call(call: JsonObject, raw: object, path: str) -> JsonObject:
    """Return the item for a ``web_fetch`` call and its result. If the page is no text but, for
    example, a PDF, the item has no text. Antiphon's own results are always texts."""
    result = read_object(raw, f"{path}.content")
    page = read_object(result.get("content") or {}, f"{path}.content.content")
    source = read_object(page.get("source") or {}, f"{path}.content.content.source")
    url = result.get("url") or call["input"].get("url")
    item: JsonObject = {"type": "web_search_call", "action": {"type": "open_page", "url": url}}
    if "url" not in result:
        return {**item, "status": "failed"}
    text = source.get("data") if source.get("type") == "text" else ""
    return {**item, "results": [{"url": url, "title": page.get("title") or "", "text": text}]}


def _mcp_call(call: JsonObject, fields: JsonObject, path: str) -> JsonObject:
    raw = fields.get("content", "")
    texts = [raw] if isinstance(raw, str) else _texts(raw, f"{path}.content", 1_000)
    return {
        "type": "mcp_call",
        "server_label": str(call.get("server_name", "")),
        "name": call["name"],
        "arguments": msgspec.json.encode(call["input"]).decode(),
        "error" if fields.get("is_error") is True else "output": "\n".join(texts),
    }


def _code_call(call: JsonObject, content: object, container: str | None) -> JsonObject:
    result = content if isinstance(content, dict) else {}
    logs = "".join(str(result.get(name, "")) for name in ("stdout", "stderr", "error_code"))
    return {
        "type": "code_interpreter_call",
        "container_id": container or "",
        "code": str(call["input"].get("code", "")),
        "outputs": [{"type": "logs", "logs": logs}],
    }


def _function_call(id: str, call: JsonObject, content: object) -> list[JsonObject]:
    """Return a call of a function and its output, for a server tool that only other servers run."""
    output = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    arguments = msgspec.json.encode(call["input"]).decode()
    return [
        {"type": "function_call", "call_id": id, "name": call["name"], "arguments": arguments},
        {"type": "function_call_output", "call_id": id, "output": output},
    ]


#: Role → the types of blocks in messages of this role, with the methods that translate them.
BLOCKS: Mapping[str, Mapping[str, Callable[[_MessageReader, JsonObject, str], None]]] = {
    "user": {
        "text": _MessageReader._input,
        "image": _MessageReader._input,
        "document": _MessageReader._input,
        "search_result": _MessageReader._input,
        "compaction": _MessageReader._compaction,
        "container_upload": _MessageReader._container_upload,
        "tool_result": _MessageReader._tool_result,
        **dict.fromkeys(get_args(ServerResult), _MessageReader._server_tool_result),
    },
    "assistant": {
        "text": _MessageReader._output_text,
        "thinking": _MessageReader._thinking,
        "redacted_thinking": _MessageReader._redacted_thinking,
        "tool_use": _MessageReader._tool_use,
        "server_tool_use": _MessageReader._server_tool_use,
        "mcp_tool_use": _MessageReader._server_tool_use,
        "mcp_tool_listing": _MessageReader._mcp_listing,
        "compaction": _MessageReader._compaction,
        "fallback": lambda reader, fields, path: None,  # it is not part of the prompt
        **dict.fromkeys(get_args(ServerResult), _MessageReader._server_tool_result),
    },
    "system": {
        "text": _MessageReader._input,
        "tool_addition": _MessageReader._tool_addition,
        "tool_removal": _MessageReader._tool_removal,
    },
}


# --- parts ---------------------------------------------------------------------------------------


def _input_text(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


def _text(raw: object, path: str) -> str:
    fields = read_object(raw, path)
    read_tag(fields, path, ("text",))
    return read_string(fields, "text", path)


def _texts(raw: object, path: str, limit: int, expected: str = "an array") -> list[str]:
    return [_text(block, at) for block, at in read_objects(raw, path, limit, expected)]


def _string(fields: JsonObject, name: str, path: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise invalid_type(f"{path}.{name}", "a string", json_type_name(value))
    return value


def _text_part(fields: JsonObject, path: str) -> list[JsonObject]:
    text = _text(fields, path)
    return [_input_text(text)] if text else []


def _image(fields: JsonObject, path: str) -> list[JsonObject]:
    source = read_inner(fields, "source", path)
    path = f"{path}.source"
    kind = read_tag(source, path, ("base64", "url", "file"))
    if kind == "base64":
        media_type = read_choice(source.get("media_type"), f"{path}.media_type", _IMAGE_TYPES)
        data = read_string(source, "data", path)
        return [{"type": "input_image", "image_url": f"data:{media_type};base64,{data}"}]
    if kind == "url":
        return [{"type": "input_image", "image_url": read_string(source, "url", path)}]
    return [{"type": "input_image", "file_id": read_string(source, "file_id", path)}]


def _document(fields: JsonObject, path: str, passages: Passages) -> list[JsonObject]:
    source = read_inner(fields, "source", path)
    kind = read_tag(source, f"{path}.source", _DOCUMENTS)
    context, title = (_string(fields, name, path) for name in ("context", "title"))
    lead = [_input_text(context)] if context else []
    index = passages.next_index("document")
    parts = _DOCUMENTS[kind](source, f"{path}.source", title)
    if not cites(fields, path):
        return [*lead, *parts]
    cited = Source(kind="char", index=index, title=title or None, file_id=source.get("file_id"))
    if kind == "text":
        text = passages.add_text(replace(cited, text=source["data"]))
    elif kind == "content":
        content = source.get("content", "")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if any(each["type"] != "text" for each in blocks):
            raise unsupported_parameter(f"{path}.citations", " The document contains images.")
        text = passages.add_blocks(replace(cited, kind="block"), [each["text"] for each in blocks])
    else:
        passages.add_file(cited, path)
        return [*lead, *parts]
    return [*lead, _input_text(text)]


def _file_document(source: JsonObject, path: str, title: str) -> list[JsonObject]:
    match source["type"]:
        case "url":
            name = {"filename": title} if title else {}
            file = {"file_url": read_string(source, "url", path), **name}
        case "file":
            file = {"file_id": read_string(source, "file_id", path)}
        case "text":
            encoded = base64.b64encode(read_string(source, "data", path).encode()).decode()
            data = f"data:text/plain;base64,{encoded}"
            file = {"filename": title or "document.txt", "file_data": data}
        case _:
            media_type = source.get("media_type", _PDF)
            if media_type != _PDF:
                raise invalid_value(f"{path}.media_type", str(media_type), (_PDF,))
            data = f"data:{_PDF};base64,{read_string(source, 'data', path)}"
            file = {"filename": title or "document.pdf", "file_data": data}
    return [{"type": "input_file", **file}]


def _content_document(source: JsonObject, path: str, title: str) -> list[JsonObject]:
    content = source.get("content", "")
    lead = [_input_text(title)] if title else []
    if isinstance(content, str):
        return [*lead, _input_text(content)]
    blocks = read_objects(content, f"{path}.content", _MAX_BLOCKS, "a string or an array")
    for fields, at in blocks:
        lead += (_text_part if read_tag(fields, at, ("text", "image")) == "text" else _image)(
            fields, at
        )
    return lead


_DOCUMENTS: Mapping[str, Callable[[JsonObject, str, str], list[JsonObject]]] = {
    "content": _content_document,
    **dict.fromkeys(("base64", "text", "url", "file"), _file_document),
}


def _search_result_part(fields: JsonObject, path: str, passages: Passages) -> list[JsonObject]:
    title, source = (_string(fields, name, path) for name in ("title", "source"))
    texts = _texts(fields.get("content", []), f"{path}.content", _MAX_BLOCKS)
    index = passages.next_index("search_result")
    if cites(fields, path):
        found = Source(kind="search_result", index=index, title=title or None, url=source)
        return [_input_text(passages.add_blocks(found, texts))]
    return [_input_text("\n".join([f"{title} ({source})", *texts]))]


#: Types of blocks that the model can cite.
_CITABLE = ("document", "search_result")
#: Type of another block in a message or a tool result → function that returns its input parts.
_PARTS: Mapping[str, Callable[[JsonObject, str], list[JsonObject]]] = {
    "text": _text_part,
    "image": _image,
    "browser_state": lambda fields, path: [_input_text(browser_state_text(fields, path))],
}


# --- search results ------------------------------------------------------------------------------


def _search_result(raw: object, path: str) -> JsonObject:
    fields = read_object(raw, path)
    url, title, content = (
        _string(fields, name, path) for name in ("url", "title", "encrypted_content")
    )
    return {"url": url, "title": title, "text": text_of_result(content)}
