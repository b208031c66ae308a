"""Messages between the supervisor and its child processes. The supervisor sends a ``ChildSetup``
when a child starts. The child then sends reports: that it has started, that it cannot start, or
that it has reloaded its settings. The report of the start names the URL, the models and the
capabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from antiphon.config.load import SettingsSources

#: What a process of a server does: it serves clients, runs the models, or owns the containers.
ProcessRole: TypeAlias = Literal["worker", "host", "containers"]

#: Seconds that a child may take to end, in addition to ``drain_s``.
CHILD_END_S = 15.0

encode = msgspec.msgpack.Encoder().encode


class WorkerFolder(Struct, frozen=True):
    """The folder with the sockets of one server's processes."""

    path: str

    @property
    def peers(self) -> Path:
        """The path of the folder with the sockets of the processes that share the database."""
        return Path(self.path)

    @property
    def hub(self) -> Path:
        """The path of the supervisor's socket."""
        return Path(self.path, "hub")

    @property
    def host(self) -> Path:
        """The path of the socket of the process that hosts models."""
        return Path(self.path, "host")

    @property
    def containers(self) -> Path:
        """The path of the socket of the process that owns the containers."""
        return Path(self.path, "containers")

    def worker(self, number: int) -> Path:
        """Return the path of a worker's socket. ``number``: the number of the worker, from 1."""
        return Path(self.path, f"worker{number}")


class ChildSetup(Struct, frozen=True, kw_only=True):
    """The first message from the supervisor to a child.

    - ``role``: what the child does: serve requests as a worker, host models, or own containers.
    - ``number``: the number of the worker, from 1; 0 for other children.
    - ``sources``: where the child reads the settings.
    - ``folder``: the folder with the sockets of the server's processes.
    - ``listeners``: file descriptors of the sockets on which the child accepts connections.
    - ``port``: the port of the server.
    - ``has_host``: whether there is a process that hosts models.
    - ``has_containers``: whether there is a process that owns containers.
    """

    role: ProcessRole
    number: int = 0
    sources: SettingsSources
    folder: WorkerFolder
    listeners: tuple[int, ...] = ()
    port: int = 0
    has_host: bool = False
    has_containers: bool = False


class StartFailure(Struct, frozen=True, tag=True):
    """The report of a child process that could not start. ``reason``: the cause, and what the
    operator must change."""

    reason: str


class ReloadReport(Struct, frozen=True, tag=True):
    """The report of a child process that has read its settings again. ``is_valid``: whether the new
    settings are valid and the child has applied them."""

    is_valid: bool


class Capability(Struct, frozen=True, kw_only=True):
    """A feature of a server. ``problem``: why the feature does not work, and what to do. It is None
    if the feature works."""

    name: str
    problem: str | None = None


class AnnouncedModel(Struct, frozen=True):
    """A model in the message that announces that the server has started: its name, its aliases and
    its context size in tokens."""

    name: str
    aliases: tuple[str, ...] = ()
    context_size: int | None = None


class StartReport(Struct, frozen=True, kw_only=True, tag=True):
    """The report of a child process that has started. A worker reports the URL of the server, the
    models that the server offers, its capabilities (which features work and which do not), and the
    API key that it has created because there was none. Other children report no URL and no
    models."""

    url: str
    models: tuple[AnnouncedModel, ...]
    capabilities: tuple[Capability, ...] = ()
    first_key: str | None = None


ChildReport: TypeAlias = StartReport | StartFailure | ReloadReport

decode_setup = msgspec.msgpack.Decoder(ChildSetup).decode
decode_report = msgspec.msgpack.Decoder(ChildReport).decode
