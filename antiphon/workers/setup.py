"""Messages between the supervisor and its child processes when a child starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from antiphon.bootstrap.capabilities import Capability
from antiphon.config.load import SettingsSources

__all__ = [
    "CHILD_END_S",
    "AnnouncedModel",
    "ChildReport",
    "ChildSetup",
    "ReloadReport",
    "Role",
    "StartFailure",
    "StartReport",
    "WorkerFolder",
    "decode_report",
    "decode_setup",
    "encode",
]

Role: TypeAlias = Literal["worker", "host", "containers"]

#: Seconds that a child may take to end, in addition to ``drain_s``.
CHILD_END_S = 15.0

encode = msgspec.msgpack.Encoder().encode


class WorkerFolder(Struct, frozen=True):
    """The folder with the sockets of one server's processes."""

    path: str

    @property
    def peers(self) -> Path:
        """The folder with the sockets of the processes that share the database."""
        return Path(self.path)

    @property
    def hub(self) -> Path:
        """The socket of the supervisor."""
        return Path(self.path, "hub")

    @property
    def host(self) -> Path:
        """The socket of the process that hosts models."""
        return Path(self.path, "host")

    @property
    def containers(self) -> Path:
        """The socket of the process that owns the containers."""
        return Path(self.path, "containers")

    def worker(self, number: int) -> Path:
        """The socket of a worker."""
        return Path(self.path, f"worker{number}")


class ChildSetup(Struct, frozen=True, kw_only=True):
    """The first message from the supervisor to a child.

    ``number``: the number of the worker, from 1; 0 for other children. ``listeners``: descriptors
    of the sockets on which the child accepts connections. ``port``: the port of the server.
    ``has_host``: whether there is a process that hosts models. ``has_containers``: whether there is
    a process that owns containers.
    """

    role: Role
    number: int = 0
    sources: SettingsSources
    folder: WorkerFolder
    listeners: tuple[int, ...] = ()
    port: int = 0
    has_host: bool = False
    has_containers: bool = False


class AnnouncedModel(Struct, frozen=True):
    """A served model in the message that announces the server: its name, aliases and context
    size."""

    name: str
    aliases: tuple[str, ...] = ()
    context_size: int | None = None


class StartReport(Struct, frozen=True, kw_only=True, tag=True):
    """Report that the server has started. It contains the server's URL, its models and its
    capabilities."""

    url: str
    models: tuple[AnnouncedModel, ...]
    capabilities: tuple[Capability, ...] = ()


class StartFailure(Struct, frozen=True, tag=True):
    """Report that a child could not start. ``reason``: the cause, and what the operator must
    change."""

    reason: str


class ReloadReport(Struct, frozen=True, tag=True):
    """Report that a child has read its settings again. ``is_valid``: whether it has applied
    them."""

    is_valid: bool


ChildReport: TypeAlias = StartReport | StartFailure | ReloadReport

decode_setup = msgspec.msgpack.Decoder(ChildSetup).decode
decode_report = msgspec.msgpack.Decoder(ChildReport).decode
