"""Containers: what a client asks for, and how they and their files are shown. Field lists: the
``openai`` SDK's types, 3.52.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import bad_value, kind_of, missing
from antiphon.wire.parsing.fields import converted, known
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, Limits, parse

from .skills import ShellSkill, shell_skills

__all__ = [
    "MEMORY",
    "Auto",
    "Container",
    "ContainerFile",
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
    """A container that a tool makes, or finds again in what came before. Only the shell's have
    ``skills``."""

    file_ids: _FileIds = ()
    memory_limit: Memory | None = None
    network_policy: NetworkPolicy | None = None
    skills: tuple[ShellSkill, ...] = ()


class CreateContainer(Struct, frozen=True, kw_only=True):
    """The body of ``POST /containers``."""

    name: str
    expires_after: ExpiresAfter | None = None
    file_ids: _FileIds = ()
    memory_limit: Memory | None = None
    network_policy: NetworkPolicy | None = None
    skills: tuple[ShellSkill, ...] = ()


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


def auto(raw: Mapping[str, Any], path: str, type: str = "auto") -> Auto:
    """What a tool says of its container. Raises ``InvalidRequest``."""
    if raw.get("type") != type:
        raise bad_value(f"{path}.type", str(raw.get("type", kind_of(None))), (type,))
    names = {*Auto.__struct_fields__, "type"} - ({"skills"} if type == "auto" else set())
    given = known(raw, names, path)
    _check_policy(given.get("network_policy"), f"{path}.network_policy")
    skills = shell_skills(given.pop("skills", []), f"{path}.skills")
    return replace(converted(given, Auto, path), skills=skills)


def create_container(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CreateContainer:
    """The body of ``POST /containers``. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "name" not in raw:
        raise missing("name")
    given = known(raw, CreateContainer.__struct_fields__, "")
    _check_policy(given.get("network_policy"), "network_policy")
    skills = shell_skills(given.pop("skills", []), "skills")
    return replace(converted(given, CreateContainer, ""), skills=skills)


def file_reference(body: bytes, limits: Limits = DEFAULT_LIMITS) -> str:
    """The uploaded file that ``POST /containers/{id}/files`` names. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "file_id" not in raw:
        raise missing("file_id")
    return converted(raw, _Reference, "").file_id


def _check_policy(raw: Any, path: str) -> None:
    """Nothing is reached from a container, whatever else is asked of it."""
    if isinstance(raw, Mapping) and raw.get("type") == "allowlist":
        raise InvalidRequest(
            "Containers of this server have no network: only a policy of type 'disabled' can be"
            " honoured.",
            param=f"{path}.type",
            code="unsupported_value",
        )


class _Reference(Struct, frozen=True):
    file_id: str
