"""Containers: types and parsers.

Source of the fields: the types of the ``openai`` SDK, version 3.52.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
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
    "DomainSecret",
    "FileReference",
    "NetworkPolicy",
    "parse_create_container",
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


class DomainSecret(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret for requests to one domain. Code in the container refers to the secret by its
    name."""

    domain: Annotated[str, Meta(max_length=253)]
    name: Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
    #: Printable ASCII: it becomes part of a header.
    value: Annotated[str, Meta(pattern="^[ -~]{1,8192}$")]


_Domain = Annotated[
    str,
    Meta(
        max_length=253,
        pattern=r"^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z][A-Za-z0-9-]{0,62}$",
    ),
]


class NetworkPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The network policy of a container.

    Only the type ``allowlist`` has ``allowed_domains`` and ``domain_secrets``. Responses never
    contain the secrets.
    """

    type: Literal["disabled", "allowlist"] = "disabled"
    allowed_domains: Annotated[tuple[_Domain, ...], Meta(max_length=100)] | UnsetType = UNSET
    domain_secrets: Annotated[tuple[DomainSecret, ...], Meta(max_length=50)] | UnsetType = UNSET

    @property
    def domains(self) -> tuple[str, ...]:
        """The allowed domains, in lower case."""
        return tuple(each.lower() for each in self.allowed_domains or ())

    @property
    def secrets(self) -> tuple[DomainSecret, ...]:
        """The secrets for requests to allowed domains."""
        return self.domain_secrets or ()


class AutoContainer(Struct, frozen=True, kw_only=True):
    """A container that a tool creates, or reuses from an earlier call of the conversation. In
    OpenAI's API, only containers of the shell tool have ``skills``."""

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
    """A file in a container. ``source``: whether the user or the assistant created the file."""

    id: str
    object: Literal["container.file"] = "container.file"
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: Literal["user", "assistant"]


def read_auto_container(raw: Mapping[str, object], path: str, type: str = "auto") -> AutoContainer:
    """Read the container settings of a tool. ``type``: the value that ``raw["type"]`` must have.
    Raises ``InvalidRequest``.
    """
    if raw.get("type") != type:
        raise invalid_value(f"{path}.type", str(raw.get("type", json_type_name(None))), (type,))
    given = known_fields(raw, {*AutoContainer.__struct_fields__, "type"}, path)
    skills = read_shell_skills(given.pop("skills", []), f"{path}.skills")
    container = replace(convert(given, AutoContainer, path), skills=skills)
    _check_network_policy(container.network_policy, f"{path}.network_policy")
    return container


def parse_create_container(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CreateContainer:
    """Parse the body of ``POST /containers``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    given = known_fields(raw, CreateContainer.__struct_fields__, "")
    skills = read_shell_skills(given.pop("skills", []), "skills")
    container = replace(convert(given, CreateContainer, ""), skills=skills)
    _check_network_policy(container.network_policy, "network_policy")
    return container


def _check_network_policy(policy: NetworkPolicy | None, path: str) -> None:
    """Raise ``InvalidRequest`` for a network policy with missing or contradictory fields."""
    if policy is None:
        return
    if policy.type == "disabled":
        for name in ("allowed_domains", "domain_secrets"):
            if getattr(policy, name) is not UNSET:
                raise InvalidRequest(
                    f"Only a policy of type 'allowlist' may have '{name}'.",
                    param=f"{path}.{name}",
                    code="invalid_value",
                )
    elif policy.allowed_domains is UNSET:
        raise missing_parameter(f"{path}.allowed_domains")
    names: set[str] = set()
    for index, secret in enumerate(policy.secrets):
        where = f"{path}.domain_secrets[{index}]"
        if secret.domain.lower() not in policy.domains:
            message = f"The domain {secret.domain!r} is not one of the allowed domains."
            raise InvalidRequest(message, param=f"{where}.domain", code="invalid_value")
        if secret.name in names:
            message = f"Two secrets are called {secret.name!r}."
            raise InvalidRequest(message, param=f"{where}.name", code="invalid_value")
        names.add(secret.name)


class FileReference(Struct, frozen=True):
    """A file to copy into a container."""

    file_id: str
