"""Containers: what a client asks for, and how they and their files are shown. Field lists: the
``openai`` SDK's types, 3.52.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from antiphon.errors import InvalidRequest

from .body import DEFAULT_LIMITS, Limits, parse
from .faults import bad_value, kind_of, missing, shortened
from .shape import converted

__all__ = [
    "MEMORY",
    "Auto",
    "Container",
    "ContainerFile",
    "ContainerFileList",
    "ContainerList",
    "CreateContainer",
    "ExpiresAfter",
    "NetworkPolicy",
    "auto",
    "create_container",
    "file_reference",
]

Memory = Literal["1g", "4g", "16g", "64g"]
#: Bytes of a memory limit.
MEMORY: Mapping[Memory, int] = {"1g": 1 << 30, "4g": 4 << 30, "16g": 16 << 30, "64g": 64 << 30}

_FileIds = Annotated[tuple[str, ...], Meta(max_length=50)]


class ExpiresAfter(Struct, frozen=True, kw_only=True):
    """How long a container is kept that nobody uses."""

    anchor: Literal["last_active_at"] = "last_active_at"
    minutes: Annotated[int, Meta(ge=1)]


class NetworkPolicy(Struct, frozen=True, kw_only=True):
    """There is no network in a container here."""

    type: Literal["disabled"] = "disabled"


class Auto(Struct, frozen=True, kw_only=True):
    """A container that a tool makes, or finds again in what came before."""

    file_ids: _FileIds = ()
    memory_limit: Memory | None = None
    network_policy: NetworkPolicy | None = None


class CreateContainer(Struct, frozen=True, kw_only=True):
    """The body of ``POST /containers``."""

    name: str
    expires_after: ExpiresAfter | None = None
    file_ids: _FileIds = ()
    memory_limit: Memory | None = None
    network_policy: NetworkPolicy | None = None


class Container(Struct, frozen=True, kw_only=True):
    """A container as it is shown. Times are unix seconds."""

    id: str
    object: Literal["container"] = "container"
    created_at: int
    name: str
    status: Literal["active", "expired"]
    expires_after: ExpiresAfter
    last_active_at: int
    memory_limit: Memory
    network_policy: NetworkPolicy = field(default_factory=NetworkPolicy)


class ContainerFile(Struct, frozen=True, kw_only=True):
    """A file in a container. ``source``: who put it there, ``user`` or ``assistant``."""

    id: str
    object: Literal["container.file"] = "container.file"
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: Literal["user", "assistant"]


class ContainerList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Container, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ContainerFileList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[ContainerFile, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


def auto(raw: Mapping[str, Any], path: str, types: tuple[str, ...] = ("auto",)) -> Auto:
    """What a tool says of its container. Raises ``InvalidRequest``."""
    if raw.get("type") not in types:
        raise bad_value(f"{path}.type", str(raw.get("type", kind_of(None))), types)
    return converted(_known(raw, Auto, path, "type"), Auto, path)


def create_container(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CreateContainer:
    """The body of ``POST /containers``. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "name" not in raw:
        raise missing("name")
    return converted(_known(raw, CreateContainer, ""), CreateContainer, "")


def file_reference(body: bytes, limits: Limits = DEFAULT_LIMITS) -> str:
    """The uploaded file that ``POST /containers/{id}/files`` names. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "file_id" not in raw:
        raise missing("file_id")
    return converted(raw, _Reference, "").file_id


class _Reference(Struct, frozen=True):
    file_id: str


def _known(raw: Mapping[str, Any], kind: type[Struct], path: str, *more: str) -> dict[str, Any]:
    """Without what says nothing; what we cannot honour is refused by name."""
    known = {*kind.__struct_fields__, *more}
    given = {name: value for name, value in raw.items() if value is not None}
    for name, value in given.items():
        if name not in known and value != []:
            where = f"{path}.{shortened(name)}" if path else shortened(name)
            raise InvalidRequest(
                f"Unknown parameter: '{where}'.", param=where, code="unknown_parameter"
            )
    return {name: value for name, value in given.items() if name in kind.__struct_fields__}
