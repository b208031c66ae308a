"""The JSON of the endpoints that inform about the server: its health, its tokenizers, which mostly
have vLLM's fields, its settings and its tools."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire.tools import HostedTool

#: Why a server does not accept new requests. ``store``: its store cannot be written for a reason
#: that has no name of its own.
UnreadyReason = Literal["stopping", "store", "disk_full", "read_only", "disk_error"]


class ProcessHealth(Struct, frozen=True, kw_only=True):
    """The state of one process of a server with several workers.

    ``name``: ``worker 1``, ``worker 2`` and so on for the workers, ``host`` for the process that
    hosts models, or ``containers`` for the process that owns the containers. ``restarts``: how
    often the process died and was started again.
    """

    name: str
    status: Literal["running", "starting"]
    restarts: int


class Health(Struct, frozen=True, kw_only=True):
    """Answer of the health check. It shows that the event loop runs. ``processes``: the processes
    of a server with several workers."""

    status: Literal["ok"] = "ok"
    processes: tuple[ProcessHealth, ...] | UnsetType = UNSET


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether the server accepts new requests. ``reason``: why it does not accept new requests."""

    status: Literal["ready", "not_ready"]
    reason: UnreadyReason | UnsetType = UNSET


class TokenizeResult(Struct, frozen=True, kw_only=True):
    """The tokens of a text. ``max_model_len``: the context size of the model, in tokens."""

    count: int
    max_model_len: int | None
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class DetokenizeResult(Struct, frozen=True, kw_only=True):
    """The result of converting token ids to text. ``prompt``: the text."""

    prompt: str


class ServerVersion(Struct, frozen=True, kw_only=True):
    """The version of the server."""

    version: str


class ServerLoad(Struct, frozen=True, kw_only=True):
    """The number of requests that run or wait."""

    server_load: int


class SettingEntry(Struct, frozen=True, kw_only=True):
    """One setting.

    ``value``: the value as in a settings file, with secrets hidden. It is null if the setting has
    no value. ``origin``: the file, the environment variable or the flag that sets the value;
    ``default`` for a default value; ``program`` if code has set the value.
    """

    name: str
    value: str | None
    origin: str
    group: str
    help: str


class SettingList(Struct, frozen=True, kw_only=True):
    """The answer of ``GET /antiphon/settings``: all settings of the server, in the order in which
    the documentation lists them."""

    object: Literal["list"] = "list"
    data: tuple[SettingEntry, ...]


class ToolEntry(Struct, frozen=True, kw_only=True):
    """A type of tool that requests can use.

    ``reason``: why the server cannot run the tool now, and what to do. It is null if the server can
    run it. ``server_labels``: for ``mcp``, the MCP servers that the operator has configured.
    """

    type: HostedTool
    available: bool
    reason: str | None = None
    server_labels: tuple[str, ...] | UnsetType = UNSET


class ToolList(Struct, frozen=True, kw_only=True):
    """The tools that this server runs or could run."""

    object: Literal["list"] = "list"
    data: tuple[ToolEntry, ...]


class McpServerTool(Struct, frozen=True, kw_only=True):
    """A tool of an MCP server. A long name or description is shortened. ``read_only``: whether the
    tool changes nothing, according to the MCP server."""

    name: str
    description: str | None
    read_only: bool


class McpServerTools(Struct, frozen=True, kw_only=True):
    """The tools that an MCP server offers."""

    object: Literal["list"] = "list"
    data: tuple[McpServerTool, ...]
