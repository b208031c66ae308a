"""One complete JSON sample of every tool, part and item, with every field of the SDK's types.

``REQUIRED``: type → required fields. All other fields may be absent or null. ``FOREIGN``: types of
items and tools that OpenAI's SDK does not know. The tests that let the SDK read objects leave out
these types, and the events of these items.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import fields

from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire import tools as tl
from antiphon.wire.tags import tag_of

Json = dict[str, Any]

FOREIGN: frozenset[str] = frozenset({"agent_message", "context_compaction", "web_fetch"})
FOREIGN_EVENTS = frozenset(
    tag_of(event) for cls, kind in KINDS.items() if tag_of(cls) in FOREIGN for event in kind.events
)

#: Codes of failed responses that the types of OpenAI's client lack, although OpenAI's server sends
#: them and Codex acts on them.
SENT_TO_CODEX = frozenset({"context_length_exceeded", "insufficient_quota", "server_is_overloaded"})

_CALLER = {"type": "program", "caller_id": "call_p"}
_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": "Where",
    "properties": {"city": {"type": "string", "default": None, "encrypted": True}},
    "$defs": {},
}

FUNCTION: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "parameters": _SCHEMA,
    "strict": True,
    "output_schema": {"type": "object"},
    "defer_loading": False,
    "async": False,
    "allowed_callers": ["direct", "programmatic"],
}
CUSTOM: Json = {
    "type": "custom",
    "name": "apply",
    "description": "A patch.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
    "defer_loading": False,
    "async": False,
    "allowed_callers": ["direct"],
}
_LOCATION = {
    "type": "approximate",
    "country": "AT",
    "region": "Wien",
    "city": "Wien",
    "timezone": "Europe/Vienna",
}
_WEB_SEARCH: Json = {
    "filters": {"allowed_domains": ["example.org"]},
    "search_context_size": "low",
    "user_location": _LOCATION,
    "external_web_access": True,
}
_WEB_SEARCH_PREVIEW: Json = {
    "search_context_size": "high",
    "user_location": _LOCATION,
    "search_content_types": ["text", "image"],
}

TOOLS: dict[str, Json] = {
    tool["type"]: tool
    for tool in (
        FUNCTION,
        CUSTOM,
        {
            "type": "namespace",
            "name": "crm",
            "description": "Customers.",
            "tools": [FUNCTION, CUSTOM],
        },
        {
            "type": "tool_search",
            "execution": "client",
            "description": "Find tools.",
            "parameters": {"type": "object"},
        },
        {"type": "web_search", **_WEB_SEARCH},
        {"type": "web_search_2025_08_26", **_WEB_SEARCH},
        {"type": "web_search_preview", **_WEB_SEARCH_PREVIEW},
        {"type": "web_search_preview_2025_03_11", **_WEB_SEARCH_PREVIEW},
        {"type": "web_fetch", **_WEB_SEARCH, "max_content_tokens": 100, "citations": True},
        {
            "type": "file_search",
            "vector_store_ids": ["vs_1"],
            "max_num_results": 50,
            "filters": {"type": "eq", "key": "year", "value": 2026},
            "ranking_options": {"ranker": "auto", "score_threshold": 0.5},
        },
        {
            "type": "code_interpreter",
            "container": {"type": "auto", "file_ids": ["file_1"], "memory_limit": "1g"},
            "allowed_callers": ["direct"],
        },
        {
            "type": "image_generation",
            "action": "auto",
            "background": "opaque",
            "complexity": "low",
            "frame_count": 1,
            "frame_duration_ms": 100,
            "input_fidelity": "low",
            "input_image_mask": {"file_id": "file_1"},
            "model": "gpt-image-1",
            "moderation": "low",
            "output_compression": 100,
            "output_format": "png",
            "partial_images": 3,
            "quality": "low",
            "size": "1024x1024",
            "svg": {},
        },
        {
            "type": "mcp",
            "server_label": "docs",
            "server_url": "https://example.org/mcp",
            "connector_id": "connector_gmail",
            "tunnel_id": "tunnel_" + "a1" * 16,
            "authorization": "secret",
            "headers": {"x-key": "secret"},
            "allowed_tools": {"read_only": True, "tool_names": ["read"]},
            "require_approval": {"never": {"tool_names": ["read"]}},
            "server_description": "Docs.",
            "defer_loading": False,
            "allowed_callers": ["direct"],
        },
        {"type": "computer"},
        {
            "type": "computer_use_preview",
            "display_width": 1024,
            "display_height": 768,
            "environment": "browser",
        },
        {"type": "local_shell"},
        {
            "type": "shell",
            "environment": {"type": "local", "skills": []},
            "allowed_callers": ["direct"],
        },
        {"type": "apply_patch", "allowed_callers": ["direct"]},
        {"type": "programmatic_tool_calling"},
    )
}

CHOICES: list[Any] = [
    "none",
    "auto",
    "required",
    {"type": "function", "name": "get_weather"},
    {"type": "custom", "name": "apply"},
    {"type": "mcp", "server_label": "docs"},
    {"type": "mcp", "server_label": "docs", "name": "read"},
    {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [
            {"type": "function", "name": "get_weather"},
            {"type": "mcp", "server_label": "docs"},
            {"type": "image_generation"},
        ],
    },
    {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "get_weather"}],
    },
    {"type": "file_search"},
    {"type": "web_search_preview"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "computer"},
    {"type": "computer_use"},
    {"type": "computer_use_preview"},
    {"type": "image_generation"},
    {"type": "code_interpreter"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "programmatic_tool_calling"},
]

_BREAKPOINT = {"mode": "explicit"}
_LOGPROB: Json = {
    "token": "Hi",
    "bytes": [72, 105],
    "logprob": -0.1,
    "top_logprobs": [{"token": "Hi", "bytes": [72, 105], "logprob": -0.1}],
}
_ANNOTATIONS: list[Json] = [
    {"type": "file_citation", "file_id": "file_1", "filename": "a.txt", "index": 0},
    {
        "type": "url_citation",
        "url": "https://example.org",
        "title": "T",
        "start_index": 0,
        "end_index": 1,
    },
    {
        "type": "container_file_citation",
        "container_id": "cntr_1",
        "file_id": "file_1",
        "filename": "a.txt",
        "start_index": 0,
        "end_index": 1,
    },
    {"type": "file_path", "file_id": "file_1", "index": 0},
]

INPUT_PARTS: list[Json] = [
    {"type": "input_text", "text": "What is this?", "prompt_cache_breakpoint": _BREAKPOINT},
    {
        "type": "input_image",
        "image_url": "data:image/png;base64,AA==",
        "file_id": "file_1",
        "detail": "original",
        "prompt_cache_breakpoint": _BREAKPOINT,
    },
    {
        "type": "input_file",
        "file_data": "data:text/plain;base64,AA==",
        "file_id": "file_1",
        "file_url": "https://example.org/a.txt",
        "filename": "a.txt",
        "detail": "low",
        "prompt_cache_breakpoint": _BREAKPOINT,
    },
]
OUTPUT_PARTS: list[Json] = [
    {
        "type": "output_text",
        "text": "Hi",
        "annotations": _ANNOTATIONS,
        "logprobs": [_LOGPROB],
    },
    {"type": "refusal", "refusal": "No."},
]
MORE_PARTS: list[Json] = [
    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    {"type": "input_video", "video_url": "https://example.org/a.mp4"},
]

#: What the model or the server can say: each may come back as input.
OUTPUTS: dict[str, Json] = {
    item["type"]: item
    for item in (
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "incomplete",
            "phase": "commentary",
            "content": OUTPUT_PARTS,
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Brief."}],
            "content": [{"type": "reasoning_text", "text": "Long."}],
            "encrypted_content": "sealed",
            "status": "completed",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city": null}',
            "status": "completed",
            "namespace": "crm",
            "caller": _CALLER,
            "async": False,
            "created_by": "user_1",
        },
        {
            "type": "function_call_output",
            "id": "fco_1",
            "call_id": "call_1",
            "output": INPUT_PARTS,
            "status": "completed",
            "name": "get_weather",
            "namespace": "crm",
            "caller": _CALLER,
            "created_by": "user_1",
        },
        {
            "type": "custom_tool_call",
            "id": "ctc_1",
            "call_id": "call_1",
            "name": "apply",
            "input": "*** Begin",
            "status": "completed",
            "namespace": "crm",
            "caller": _CALLER,
            "async": False,
            "created_by": "user_1",
        },
        {
            "type": "custom_tool_call_output",
            "id": "ctco_1",
            "call_id": "call_1",
            "output": "Done.",
            "status": "completed",
            "caller": _CALLER,
            "created_by": "user_1",
        },
        {
            "type": "file_search_call",
            "id": "fs_1",
            "queries": ["a"],
            "status": "completed",
            "results": [
                {
                    "file_id": "file_1",
                    "filename": "a.txt",
                    "score": 0.5,
                    "text": "A",
                    "attributes": {},
                }
            ],
        },
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "a", "queries": ["a"], "sources": []},
        },
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "container_id": "cntr_1",
            "code": "1",
            "status": "completed",
            "outputs": [{"type": "logs", "logs": "1"}],
        },
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "result": "AA==",
            "status": "completed",
            "action": "generate",
            "background": "opaque",
            "error": {"type": "x", "code": "y", "message": "z"},
            "output_format": "png",
            "quality": "low",
            "revised_prompt": "A cat.",
            "size": "1024x1024",
            "svg_usage": {
                "model": "m",
                "input_tokens": 0,
                "output_tokens": 0,
                "reasoning_tokens": 0,
                "total_tokens": 0,
            },
        },
        {
            "type": "computer_call",
            "id": "cu_1",
            "call_id": "call_1",
            "pending_safety_checks": [{"id": "sc_1", "code": "c", "message": "m"}],
            "status": "completed",
            "action": {"type": "screenshot"},
            "actions": [{"type": "wait"}],
        },
        {
            "type": "computer_call_output",
            "id": "cuo_1",
            "call_id": "call_1",
            "status": "completed",
            "output": {
                "type": "computer_screenshot",
                "image_url": "data:image/png;base64,AA==",
                "file_id": "file_1",
                "detail": "auto",
            },
            "acknowledged_safety_checks": [{"id": "sc_1", "code": "c", "message": "m"}],
            "created_by": "user_1",
        },
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "call_1",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}, "user": None},
        },
        {
            "type": "local_shell_call_output",
            "id": "lsho_1",
            "output": "a",
            "status": "completed",
        },
        {
            "type": "shell_call",
            "id": "sh_1",
            "call_id": "call_1",
            "status": "completed",
            "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None},
            "environment": {"type": "local"},
            "caller": _CALLER,
            "created_by": "user_1",
        },
        {
            "type": "shell_call_output",
            "id": "sho_1",
            "call_id": "call_1",
            "status": "completed",
            "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
            ],
            "max_output_length": 100,
            "caller": _CALLER,
            "created_by": "user_1",
        },
        {
            "type": "apply_patch_call",
            "id": "apc_1",
            "call_id": "call_1",
            "status": "completed",
            "operation": {"type": "update_file", "path": "a.txt", "diff": "+a"},
            "caller": _CALLER,
            "created_by": "user_1",
        },
        {
            "type": "apply_patch_call_output",
            "id": "apco_1",
            "call_id": "call_1",
            "status": "failed",
            "output": "No such file.",
            "caller": _CALLER,
            "created_by": "user_1",
        },
        {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "docs",
            "tools": [
                {
                    "name": "read",
                    "input_schema": {"type": "object", "default": None},
                    "description": "Read.",
                    "annotations": {"readOnlyHint": True},
                }
            ],
            "error": "gone",
        },
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "server_label": "docs",
            "name": "read",
            "arguments": "{}",
        },
        {
            "type": "mcp_approval_response",
            "id": "mcpa_1",
            "approval_request_id": "mcpr_1",
            "approve": True,
            "reason": "fine",
        },
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "docs",
            "name": "read",
            "arguments": "{}",
            "status": "failed",
            "output": "a",
            "error": {"type": "http_error", "code": 500, "message": "m"},
            "approval_request_id": "mcpr_1",
        },
        {
            "type": "tool_search_call",
            "id": "tsc_1",
            "call_id": "call_1",
            "arguments": {"query": None},
            "execution": "client",
            "status": "completed",
            "created_by": "user_1",
        },
        {
            "type": "tool_search_output",
            "id": "tso_1",
            "call_id": "call_1",
            "tools": [FUNCTION, TOOLS["namespace"]],
            "execution": "client",
            "status": "completed",
            "created_by": "user_1",
        },
        {
            "type": "additional_tools",
            "id": "at_1",
            "role": "developer",
            "tools": [FUNCTION, CUSTOM],
        },
        {
            "type": "compaction",
            "id": "cmp_1",
            "encrypted_content": "sealed",
            "created_by": "user_1",
        },
        {
            "type": "program",
            "id": "prog_1",
            "call_id": "call_p",
            "code": "1",
            "fingerprint": "f",
        },
        {
            "type": "program_output",
            "id": "po_1",
            "call_id": "call_p",
            "result": "1",
            "status": "completed",
        },
    )
}

#: Items only a client sends, and the forms of a message only a client uses.
INPUTS: dict[str, Json] = {
    "message (easy)": {"type": "message", "role": "user", "content": "hi", "phase": "commentary"},
    "message (input)": {
        "type": "message",
        "id": "msg_2",
        "role": "developer",
        "status": "completed",
        "content": INPUT_PARTS,
    },
    "compaction_trigger": {"type": "compaction_trigger", "id": "ct_1"},
    "configuration_update": {
        "type": "configuration_update",
        "id": "cfg_1",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
    },
    "agent_message": {
        "type": "agent_message",
        "id": "amsg_1",
        "author": "/root",
        "recipient": "/root/child",
        "content": [
            {"type": "input_text", "text": "Payload:\n"},
            {"type": "encrypted_content", "encrypted_content": "Count the files."},
        ],
        "agent": {"agent_name": "/root"},
    },
    "context_compaction": {
        "type": "context_compaction",
        "id": "cmp_9",
        "encrypted_content": "secret",
    },
    "item_reference": {"type": "item_reference", "id": "msg_9"},
}

ITEMS: dict[str, Json] = {**OUTPUTS, **INPUTS}

#: Required fields that the classes do not state, because other checks require them, because the
#: server sets them, or because it needs one of several fields.
_ALSO_REQUIRED: dict[str, set[str]] = {
    "local_shell_call_output": {"id"},
    "item_reference": {"id"},
    "configuration_update": {"reasoning"},
    "mcp": {"server_url"},
    "input_image": {"image_url"},
    "input_file": {"file_data"},
}
REQUIRED: dict[str, set[str]] = {
    tag_of(cls): {field.encode_name for field in fields(cls) if field.required}
    | _ALSO_REQUIRED.get(tag_of(cls), set())
    for cls in (*it.INPUT_ITEMS, *tl.Tool.__args__, *it.Part.__args__)
}


def known(response: Json) -> Json:
    """Return a response without the items, tools and error codes that OpenAI's SDK lacks."""
    error = response["error"]
    if error is not None and error["code"] in SENT_TO_CODEX:
        error = {**error, "code": "server_error"}
    lists = {
        name: [each for each in response[name] if each["type"] not in FOREIGN]
        for name in ("output", "tools")
    }
    return {**response, **lists, "error": error}


def bare(value: Json) -> Json:
    """Return the required fields only."""
    keep = REQUIRED.get(value["type"], set()) | {"type"}
    return {name: field for name, field in value.items() if name in keep}


def nulled(value: Json) -> Json:
    """Return the value with all optional fields null."""
    keep = REQUIRED.get(value["type"], set()) | {"type"}
    return {name: field if name in keep else None for name, field in value.items()}


def noisy(value: Json) -> Json:
    """Return the value with unknown keys."""
    return {
        **value,
        "internal_chat_message_metadata_passthrough": {"turn": None},
        "parsed_arguments": {"a": 1},
        "": None,
    }
