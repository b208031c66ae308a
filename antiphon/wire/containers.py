"""Containers: types and parsers.

Field lists: the ``openai`` SDK's types, 3.52.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import invalid_value, json_type_name, missing_parameter
from antiphon.wire.parsing.fields import convert, known_fields
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object

from .skills import ShellSkill, read_shell_skills

__all__ = [
    "MEMORY_BYTES",
    "AutoContainer",
    "ContainerExpiresAfter",
    "ContainerFile",
    "ContainerResource",
    "CreateContainer",
    "FileReference",
    "NetworkPolicy",
    "parse_create_container",
    "parse_file_reference",
    "read_auto_container",
]

MemoryLimit = Literal["1g", "4g", "16g", "64g"]
#: Memory limit → bytes.
MEMORY_BYTES: Mapping[MemoryLimit, int] = {
    "1g": 1 << 30,
    "4g": 4 << 30,
    "16g": 16 << 30,
    "64g": 64 << 30,
}

_FileIds = Annotated[tuple[str, ...], Meta(max_length=50)]


class ContainerExpiresAfter(Struct, frozen=True, kw_only=True):
    """When a container expires: ``minutes`` after its last use."""

    anchor: Literal["last_active_at"] = "last_active_at"
    minutes: Annotated[int, Meta(ge=1)]


class NetworkPolicy(Struct, frozen=True, kw_only=True):
    """The network policy of a container. Containers of this server have no network."""

    type: Literal["disabled"] = "disabled"


class AutoContainer(Struct, frozen=True, kw_only=True):
    """A container that a tool creates, or reuses from an earlier call of the conversation. Only the
    shell tool's containers have ``skills``.
    """

    file_ids: _FileIds = ()
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: tuple[ShellSkill, ...] = ()


class CreateContainer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /containers``."""

    name: str
    expires_after: ContainerExpiresAfter | None = None
    file_ids: _FileIds = ()
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: tuple[ShellSkill, ...] = ()


class ContainerResource(Struct, frozen=True, kw_only=True):
    """A container as the API shows it. Times are unix seconds."""

    id: str
    object: Literal["container"] = "container"
    created_at: int
    name: str
    status: Literal["active", "expired"]
    expires_after: ContainerExpiresAfter
    last_active_at: int
    memory_limit: MemoryLimit
    network_policy: NetworkPolicy = field(default_factory=NetworkPolicy)


class ContainerFile(Struct, frozen=True, kw_only=True):
    """A file in a container. ``source``: who created it."""

    id: str
    object: Literal["container.file"] = "container.file"
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: Literal["user", "assistant"]


def read_auto_container(raw: Mapping[str, Any], path: str, type: str = "auto") -> AutoContainer:
    """Read the container settings of a tool. ``type``: the value that ``raw["type"]`` must have.
    Raises ``InvalidRequest``.
    """
    if raw.get("type") != type:
        raise invalid_value(f"{path}.type", str(raw.get("type", json_type_name(None))), (type,))
    names = {*AutoContainer.__struct_fields__, "type"} - ({"skills"} if type == "auto" else set())
    given = known_fields(raw, names, path)
    _check_network_policy(given.get("network_policy"), f"{path}.network_policy")
    skills = read_shell_skills(given.pop("skills", []), f"{path}.skills")
    return replace(convert(given, AutoContainer, path), skills=skills)


def parse_create_container(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CreateContainer:
    """Parse the body of ``POST /containers``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    if "name" not in raw:
        raise missing_parameter("name")
    given = known_fields(raw, CreateContainer.__struct_fields__, "")
    _check_network_policy(given.get("network_policy"), "network_policy")
    skills = read_shell_skills(given.pop("skills", []), "skills")
    return replace(convert(given, CreateContainer, ""), skills=skills)


def parse_file_reference(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> str:
    """Parse the file id in a JSON body of ``POST /containers/{id}/files``. Raises
    ``InvalidRequest``.
    """
    raw = parse_json_object(body, limits)
    if "file_id" not in raw:
        raise missing_parameter("file_id")
    return convert(raw, FileReference, "").file_id


def _check_network_policy(raw: Any, path: str) -> None:
    """Refuse policies that open the network."""
    if isinstance(raw, Mapping) and raw.get("type") == "allowlist":
        raise InvalidRequest(
            "Containers of this server have no network: only a policy of type 'disabled' is"
            " supported.",
            param=f"{path}.type",
            code="unsupported_value",
        )


class FileReference(Struct, frozen=True):
    """A file to copy into a container."""

    file_id: str
