"""The report of a server that has started: its URL, its models, and its capabilities."""

from __future__ import annotations

from msgspec import Struct


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
