"""Translate tools of the Messages API, and changes of tools in the middle of a conversation.

The client runs functions, and Anthropic's tools with a fixed schema (``client_tools.py``). This
server runs the other tools: each becomes the tool of the Responses API that does the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from msgspec import UNSET

from antiphon.compat.error_paths import ErrorPaths
from antiphon.errors import InvalidRequest, invalid_field, unsupported_parameter, unsupported_value
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import (
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
)
from antiphon.wire.parsing.fields import (
    convert,
    read_object,
    read_objects,
    read_string,
    require,
)
from antiphon.wire.parsing.json_body import BodyLimits
from antiphon.wire.request import Include
from antiphon.wire.tools import Tool, WebFetch, WebSearch

from .bodies import (
    MessageContainerFields,
    MessageMcpServer,
    MessageTool,
    MessageToolChoice,
    ToolConfig,
)
from .client_tools import CLIENT_TOOLS, client_tool
from .toolsets import TOOLSETS, toolset

#: Values of ``include`` that add the data for the result blocks of server tools to responses.
INCLUDE: tuple[Include, ...] = (
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
)
_SEARCH = "tool_search"
#: About how many tokens of a page a web search shows by default if it replaces a ``web_fetch``.
_PAGE_TOKENS = 4_000
_MODES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


class ToolCollector:
    """Collects the tools that the model may use. They are the tools in ``tools`` without
    ``defer_loading``, and the tools that messages add. With a tool search, the model finds the
    deferred tools itself.

    The tools are rendered at the start of the prompt, so a tool that a message adds or removes is
    added or removed for the whole conversation.
    """

    def __init__(self, paths: ErrorPaths, limits: BodyLimits) -> None:
        self._paths = paths
        self._limits = limits
        #: Name of a tool → the tool in the form of the Responses API, and its path in the request.
        self._declared: dict[str, tuple[JsonObject, str]] = {}
        self._offered: set[str] = set()
        self._deferred: set[str] = set()
        #: Name of an MCP server → the tool for it, and the path of its declaration.
        self._servers: dict[str, tuple[JsonObject, str]] = {}
        #: Maximum numbers of web searches and of opened pages (``max_uses``), as far as given.
        self._max_uses: list[int] = []
        #: The container of the code execution.
        self.container = MessageContainerFields()
        #: Files for this container → the paths of their blocks.
        self._uploads: dict[str, str] = {}

    def declare(self, raw: object, path: str) -> None:
        """Declare all tools in the field ``tools`` of the request. Raises ``InvalidRequest``."""
        for tool, at in read_objects(raw, path, self._limits.tools):
            self.define(tool, at)

    def declare_servers(self, raw: object, path: str) -> None:
        """Declare the MCP servers in the field ``mcp_servers``. Call this before ``declare``,
        because tools refer to the servers. Raises ``InvalidRequest``."""
        for server, at in read_objects(raw, path, self._limits.tools):
            declared = convert(server, MessageMcpServer, at)
            tool = _mcp_server(declared)
            self._servers[declared.name] = (tool, at)
            old = declared.tool_configuration  # older clients send this instead of a toolset
            if old is not None and old.enabled is not False:
                if isinstance(old.allowed_tools, tuple):  # an empty one allows no tool
                    tool = {**tool, "allowed_tools": list(old.allowed_tools)}
                self._declare(f"mcp {declared.name}", tool, at)

    def define(self, raw: object, path: str) -> None:
        """Declare one tool. If the tool does not set ``defer_loading``, the model may use it
        immediately. Raises ``InvalidRequest``."""
        fields = read_object(raw, path)
        declared = convert(fields, MessageTool, path)
        kind = declared.type or "custom"
        if kind == "mcp_toolset":
            return self._define_toolset(fields, declared, path)
        if kind in TOOLSETS:
            tool, is_deferred = toolset(kind, declared.configs or {}, path)
            return self._declare(f"toolset {tool['name']}", tool, path, is_deferred=is_deferred)
        name = read_string(fields, "name", path)
        is_deferred = fields.get("defer_loading") is True
        self._declare(name, self._tool(kind, fields, path), path, is_deferred=is_deferred)

    def upload(self, block: JsonObject, path: str) -> str:
        """Put the file of a ``container_upload`` block into the container of the code execution.
        Return its id. Raises ``InvalidRequest``."""
        self.check_code_execution(path)
        id = read_string(block, "file_id", path)
        self._uploads.setdefault(id, f"{path}.file_id")
        return id

    def check_code_execution(self, path: str) -> None:
        """Raise ``InvalidRequest`` if the request declares no tool for code execution, which the
        field ``path`` needs."""
        if not any(tool["type"] == "code_interpreter" for tool, _ in self._declared.values()):
            raise unsupported_value(path, f"'{path}': the request has no tool for code execution.")

    def _tool(self, kind: str, fields: JsonObject, path: str) -> JsonObject:
        if kind in CLIENT_TOOLS:
            return client_tool(kind, fields)
        if kind.startswith("code_execution_"):
            return {"type": "code_interpreter", "container": self.container.id or {"type": "auto"}}
        if kind.startswith("tool_search_"):
            return {"type": _SEARCH, "name": fields["name"]}
        if kind == "custom":
            return _function(fields, path)
        if "max_uses" in fields:
            self._max_uses.append(fields["max_uses"])
        return (_web_search if kind.startswith("web_search_") else _web_fetch)(fields, path)

    def _define_toolset(self, fields: JsonObject, declared: MessageTool, path: str) -> None:
        """Declare the tools of an MCP server. Raises ``InvalidRequest``."""
        name = read_string(fields, "mcp_server_name", path)
        if name not in self._servers:
            raise invalid_field(
                f"{path}.mcp_server_name", f"there is no '{name[:128]}' in 'mcp_servers'."
            )
        server, server_path = self._servers[name]
        default, configs = declared.default_config or ToolConfig(), declared.configs or {}
        enabled = {each: config.enabled is not False for each, config in configs.items()}
        deferred = {each: config.defer_loading for each, config in configs.items()}
        tool = {**server, "allowed_tools": _tool_filter(default.enabled is not False, enabled)}
        if default.defer_loading or True in deferred.values():
            tool["deferred_tools"] = _tool_filter(default.defer_loading is True, deferred)
        self._declare(f"mcp {name}", tool, server_path)

    def _declare(
        self, name: str, tool: JsonObject, path: str, *, is_deferred: bool = False
    ) -> None:
        if name in self._declared:
            raise invalid_value(f"{path}.name", name)
        self._declared[name] = (tool, path)
        (self._deferred if is_deferred else self._offered).add(name)

    def add(self, name: object, path: str) -> None:
        """Let the model use a declared tool. Raises ``InvalidRequest`` for an unknown name."""
        self._offered.add(self._known(name, path))

    def remove(self, name: object, path: str) -> None:
        """Hide a declared tool from the model. Raises ``InvalidRequest`` for an unknown name."""
        self._offered.discard(self._known(name, path))

    def _known(self, name: object, path: str) -> str:
        if not isinstance(name, str):
            raise invalid_type(path, "a string", json_type_name(name))
        if name not in self._declared:
            raise invalid_field(path, f"there is no tool '{name[:128]}' in 'tools'.")
        return name

    @property
    def has_server_tools(self) -> bool:
        """Whether the server runs a tool that the request declares."""
        return any(tool["type"] != "function" for tool, _ in self._declared.values())

    def fields(self) -> JsonObject:
        """Return the fields of the Responses request for the tools that the model may use."""
        tools: list[JsonObject] = []
        self._check_domains()
        for name, (tool, path) in self._declared.items():
            if name not in self._offered:
                if not (self._has_search and name in self._deferred):
                    continue
                tool = _deferred(tool)
            if (shown := self._with_pages(tool)) is None:
                continue
            tool = shown
            at = f"tools[{len(tools)}]"
            if (self._uploads or self.container.skills) and tool["type"] == "code_interpreter":
                # The container of the conversation gets the files and skills, if there is one.
                tool = {**tool, "container": self._filled_container()}
                for index, block in enumerate(self._uploads.values()):
                    self._paths.add(f"{at}.container.file_ids[{index}]", block)
                self._paths.add(f"{at}.container.skills", "container.skills")
            self._paths.add(at, path)
            self._paths.add(f"{at}.parameters", f"{path}.input_schema")
            self._paths.add(f"{at}.filters", path)
            self._paths.add(f"{at}.server_url", f"{path}.url")
            tools.append(tool)
        if not tools:
            return {}
        fields: JsonObject = {"tools": tools}
        if any(tool["type"] != "function" for tool in tools):
            fields["include"] = list(INCLUDE)
            if self._max_uses:
                fields["max_tool_calls"] = sum(self._max_uses)
        return fields

    def _with_pages(self, tool: JsonObject) -> JsonObject | None:
        """Return a tool as the model gets it. A web search opens pages, too, so it replaces a
        ``web_fetch``, for which None is returned."""
        offered = self._offered_types()
        if tool["type"] == "web_fetch" and "web_search" in offered:
            return None
        if tool["type"] != "web_search" or "web_fetch" not in offered:
            return tool
        limit = offered["web_fetch"].get("max_content_tokens", _PAGE_TOKENS)
        return {**tool, "max_content_tokens": limit}

    def _filled_container(self) -> JsonObject:
        """Return a container with the request's files and skills."""
        skills = [
            {"type": "skill_reference", "skill_id": each.skill_id, "version": each.version}
            for each in self.container.skills or ()
        ]
        return {"type": "auto", "file_ids": list(self._uploads), "skills": skills}

    def _offered_types(self) -> dict[str, JsonObject]:
        """Return the types of the tools that the model may use, with one tool each."""
        tools = [tool for name, (tool, _) in self._declared.items() if name in self._offered]
        return {tool["type"]: tool for tool in tools}

    def _check_domains(self) -> None:
        """Check that web search and web fetch have the same domains, because the web search opens
        the pages if the request has both tools."""
        filters = {
            tool["type"]: (tool.get("filters"), path)
            for tool, path in self._declared.values()
            if tool["type"] in ("web_search", "web_fetch")
        }
        if len({str(domains) for domains, _ in filters.values()}) > 1:
            path = filters["web_fetch"][1]
            raise InvalidRequest(
                f"Unsupported parameter: '{path}' must have the same domains as the web search.",
                param=path,
                code="unsupported_parameter",
            )

    @property
    def has_hidden(self) -> bool:
        """Whether some declared tools are hidden from the model, so that a later message may add
        them."""
        return not self._has_search and self._declared.keys() != self._offered

    @property
    def _has_search(self) -> bool:
        return any(tool["type"] == _SEARCH for tool, _ in self._declared.values())

    def choice(self, name: str) -> JsonObject:
        """Return the ``tool_choice`` of the Responses API that names a tool."""
        tool, _ = self._declared.get(name, ({"type": "function"}, ""))
        kind = tool["type"]
        if kind == "web_fetch" and "web_search" in self._offered_types():
            kind = "web_search"
        return {"type": kind, "name": name} if kind == "function" else {"type": kind}

    def references(self, names: Iterable[str]) -> list[JsonObject]:
        """Return the declarations of those tools in ``names`` that the request declares."""
        return [self._declared[name][0] for name in names if name in self._declared]


def opens_pages(tools: Iterable[Tool]) -> bool:
    """Return whether a request with these tools has the tool ``web_fetch``. A web search replaces
    it, and then has its limit."""
    searches = (tool for tool in tools if isinstance(tool, WebSearch | WebFetch))
    return any(
        isinstance(tool, WebFetch) or tool.max_content_tokens is not UNSET for tool in searches
    )


def _deferred(tool: JsonObject) -> JsonObject:
    if tool["type"] == "namespace":
        return {**tool, "tools": [{**each, "defer_loading": True} for each in tool["tools"]]}
    return {**tool, "defer_loading": True}


def _given(fields: JsonObject, **renamed: str) -> JsonObject:
    """Return the fields that are set, under their new names."""
    return {new: fields[name] for name, new in renamed.items() if fields.get(name) is not None}


def _tool_filter(default: bool, choices: Mapping[str, bool | None]) -> JsonObject:
    """Return the filter for those tools of an MCP server that a toolset chooses. ``choices``: name
    of a tool → whether it is chosen, None if the default applies."""
    others = sorted(name for name, choice in choices.items() if choice is (not default))
    return {"excluded_tool_names" if default else "tool_names": others}


def _mcp_server(server: MessageMcpServer) -> JsonObject:
    """Return the MCP tool for a declared server. Anthropic's API asks for no approvals."""
    token = server.authorization_token
    return {
        "type": "mcp",
        "server_label": server.name,
        "server_url": server.url,
        **({} if token is None else {"authorization": token}),
        "require_approval": "never",
    }


def _function(fields: JsonObject, path: str) -> JsonObject:
    require(fields, path, "input_schema")
    tool: JsonObject = {
        "type": "function",
        "name": fields["name"],
        "parameters": fields["input_schema"],
    }
    tool |= {name: fields[name] for name in ("description", "strict") if name in fields}
    if "input_examples" in fields:
        lines = [json.dumps(each, ensure_ascii=False) for each in fields["input_examples"]]
        known = [tool["description"]] if "description" in tool else []
        tool["description"] = "\n".join([*known, "", "Examples of its input:", *lines])
    return tool


def _domains(fields: JsonObject) -> JsonObject:
    domains = _given(fields, allowed_domains="allowed_domains", blocked_domains="blocked_domains")
    return {"filters": domains} if domains else {}


def _web_fetch(fields: JsonObject, path: str) -> JsonObject:
    if fields.get("use_cache") is False:
        raise unsupported_parameter(f"{path}.use_cache")
    if fields.get("url_sources"):
        raise unsupported_parameter(f"{path}.url_sources")
    return {
        "type": "web_fetch",
        **_domains(fields),
        **_given(fields, max_content_tokens="max_content_tokens"),
        **_given(fields.get("citations", {}), enabled="citations"),
    }


def _web_search(fields: JsonObject, path: str) -> JsonObject:
    tool: JsonObject = {"type": "web_search", **_domains(fields)}
    if "user_location" in fields:
        tool["user_location"] = read_object(fields["user_location"], f"{path}.user_location")
    return tool


def read_tool_choice(raw: object, path: str, tools: ToolCollector) -> JsonObject:
    """Translate ``tool_choice`` to fields of the Responses request. Raises ``InvalidRequest``."""
    given = convert(read_object(raw, path), MessageToolChoice, path)
    if given.type == "tool":
        if not given.name:
            raise missing_parameter(f"{path}.name")
        choice: str | JsonObject = tools.choice(given.name)
    else:
        choice = _MODES[given.type]
    single = given.disable_parallel_tool_use is True
    return {"tool_choice": choice, **({"parallel_tool_calls": False} if single else {})}
