"""A container in the process that owns it. Its sandbox environment (box), in which its code runs,
is started on first use. Clients address the files of the container by ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas
from antiphon.sandbox.base import Box, ExecutionResult, FileEntry, Limits, OutputCallback
from antiphon.store.containers import ContainerDirectory
from antiphon.wire.resources import containers as wc

from .network import OpenEgress, network_key, shown_policy
from .skills import ContainerSkill, SkillLibrary, SkillSummary

_HOME = "/mnt/data/"


class Uploads(Protocol):
    """The files that clients have uploaded to the server."""

    async def get_name(self, tenant: str, file_id: str) -> str | None:
        """Return the name of an uploaded file. Return None if there is no such file."""

    async def read(self, tenant: str, file_id: str) -> tuple[str, bytes]:
        """Return the name and the content of an uploaded file. Raises ``NotFound``."""


class ContainerServices(Struct, frozen=True, kw_only=True):
    """What containers use of the server.

    - ``uploads``: the files that clients have uploaded.
    - ``library``: the skills that clients have uploaded.
    - ``clock`` returns Unix seconds. ``ids`` returns a new id with a prefix.
    - ``directory``: the list of the containers of all processes, kept in Antiphon's store.
    - ``quotas``: the quotas of tenants, which include the maximum number of active containers.
    """

    uploads: Uploads
    library: SkillLibrary
    clock: Callable[[], float]
    ids: Callable[[str], str]
    directory: ContainerDirectory
    quotas: TenantQuotas = NO_QUOTAS


class ContainerPolicy(Struct, frozen=True, kw_only=True):
    """The limits that the operator sets for containers.

    - ``idle_s``: seconds after which an unused container expires.
    - ``memory``: the highest memory limit that a request may set.
    - ``code_timeout_s``: maximum duration of one execution of code or of a command, in seconds.
    - ``max_output``: maximum number of characters of output that one execution returns.
    - ``domains``: the domains that the network policy in a request may list. "*" stands for any
      domain.
    - ``packages``: packages besides the standard library that code can import.
    """

    idle_s: float = 1200
    memory: wc.MemoryLimit = "1g"
    disk_bytes: int = 256 << 20
    processes: int = 128
    code_timeout_s: float = 60
    max_output: int = 20_000
    domains: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()

    def box_limits(self, memory: wc.MemoryLimit) -> Limits:
        """Return the resource limits of a sandbox environment. ``memory``: the memory limit of the
        environment."""
        return Limits(
            memory_bytes=wc.MEMORY_BYTES[memory],
            disk_bytes=self.disk_bytes,
            processes=self.processes,
        )

    def check(self, request: wc.AutoContainer | wc.CreateContainer | str, path: str = "") -> None:
        """Raise ``InvalidRequest`` if the requested memory limit is too high or the requested
        network policy is not permitted. ``path``: path of the container in the request."""
        if isinstance(request, str):  # the id of a container that was checked before
            return
        prefix = f"{path}." if path else ""
        self._check_memory(request.memory_limit, f"{prefix}memory_limit")
        if request.network_policy is not None:
            self._check_network(request.network_policy, f"{prefix}network_policy")

    def _check_network(self, policy: wc.NetworkPolicy, path: str) -> None:
        if policy.type == "allowlist" and not self.domains:
            raise InvalidRequest(
                "Containers of this server have no network: only a policy of type 'disabled' is"
                " supported.",
                param=f"{path}.type",
                code="unsupported_value",
            )
        for index, domain in enumerate(policy.domains):
            if domain not in self.domains and "*" not in self.domains:
                raise InvalidRequest(
                    f"Containers of this server may not reach {domain!r}.",
                    param=f"{path}.allowed_domains[{index}]",
                    code="unsupported_value",
                )

    def _check_memory(self, memory: wc.MemoryLimit | None, path: str) -> None:
        if memory is not None and wc.MEMORY_BYTES[memory] > wc.MEMORY_BYTES[self.memory]:
            raise InvalidRequest(
                f"Containers of this server have at most {self.memory} of memory.",
                param=path,
                code="invalid_value",
            )


class Container:
    """A container that this process owns. Code runs in the container's sandbox environment (box),
    which is started on first use. The uploaded files that requests name are then written into it.

    - ``is_auto``: whether the container was created for a response. If it is false, a client
      created the container.
    - ``open``: starts a sandbox environment with the given limits.
    - ``on_unused``: a function that is called when a response ends, if no other response uses the
      container and its sandbox environment was never started. It deletes the container.
    - ``egress``: makes the network proxy of the container. None if containers have no network.
    """

    def __init__(
        self,
        tenant: str,
        request: wc.CreateContainer,
        policy: ContainerPolicy,
        services: ContainerServices,
        *,
        id: str,
        open: Callable[[Limits], Awaitable[Box]],
        on_unused: Callable[[Container], Awaitable[None]],
        egress: OpenEgress | None = None,
        is_auto: bool = False,
    ) -> None:
        self.id = id
        self.is_auto = is_auto
        #: Number of responses that use the container.
        self._user_count = 0
        self.tenant = tenant
        self.request = request
        self._policy = policy
        self._open = open
        self._uploads = services.uploads
        self._on_unused = on_unused
        self._egress = egress
        self._clock = services.clock
        self._ids = services.ids
        self._lock = asyncio.Lock()
        self._use_count = 0
        self._created = self._last_used = self._clock()
        self._is_closed = False
        self._box: Box | None = None
        #: Ids of uploaded files that are not in the box yet, and of files that are already in it.
        self._pending_file_ids = list(dict.fromkeys(request.file_ids))
        self._loaded_file_ids: set[str] = set()
        #: Skills by name, and the keys of the skills that are mounted in the box.
        self._skills: dict[str, ContainerSkill] = {}
        self._mounted_skill_keys: dict[str, str] = {}
        self._known_entries: dict[str, FileEntry] = {}
        #: Path → metadata of the file, in the form of the API.
        self._files: dict[str, wc.ContainerFile] = {}

    @property
    def idle_s(self) -> float:
        """Seconds without use after which the container expires."""
        after = self.request.expires_after
        return self._policy.idle_s if after is None else after.minutes * 60

    @property
    def is_active(self) -> bool:
        """Whether the container can be used."""
        if self._is_closed or (self._box is not None and not self._box.is_alive):
            return False
        return bool(self._use_count) or self._clock() - self._last_used < self.idle_s

    def check_active(self) -> None:
        """Raise ``ToolError`` if the container can no longer be used."""
        if not self.is_active:
            raise ToolError(f"Container '{self.id}' has expired.")

    @property
    def last_used_at(self) -> float:
        """Time when the container was last used, in Unix seconds."""
        return self._last_used

    def expire(self) -> None:
        """Mark the container as expired. The container can then no longer be used.

        The next call of ``LocalContainers.close_expired`` closes the container's sandbox
        environment.
        """
        self._is_closed = True

    @property
    def _is_idle(self) -> bool:
        """Whether no call runs in the container and no response uses it."""
        return not self._use_count and not self._user_count

    @property
    def _is_unused(self) -> bool:
        """Whether the container's sandbox environment was never started and no response uses the
        container now."""
        return self._box is None and self._is_idle and not self._is_closed

    @property
    def is_replaceable(self) -> bool:
        """Whether the container is active, was created for a response, and is used by no response
        now. Only such a container may expire to make room for a new container."""
        return self.is_auto and self.is_active and self._is_idle

    def expire_if_replaceable(self) -> bool:
        """Let the container expire if ``is_replaceable`` is true. Returns whether the container has
        expired."""
        if self.is_replaceable:
            self.expire()
        return not self.is_active

    async def acquire(
        self, file_ids: Iterable[str] = (), skills: Iterable[ContainerSkill] = ()
    ) -> None:
        """Register that one more response uses the container, until the response calls ``release``.
        Add the given files and skills to the container."""
        self._user_count += 1
        self.add_files(file_ids)
        self.add_skills(skills)

    async def release(self) -> None:
        """Register that one response no longer uses the container."""
        self._user_count -= 1
        if self._is_unused:
            await self._on_unused(self)

    @property
    def resource(self) -> wc.ContainerResource:
        """The container in the form of the API."""
        return wc.ContainerResource(
            id=self.id,
            created_at=int(self._created),
            name=self.request.name,
            status="active" if self.is_active else "expired",
            expires_after=wc.ContainerExpiresAfter(minutes=max(1, round(self.idle_s / 60))),
            last_active_at=int(self._last_used),
            memory_limit=self.request.memory_limit or "1g",
            network_policy=self.network_policy,
        )

    @property
    def network_policy(self) -> wc.NetworkPolicy:
        """The network policy of the container, without its secrets."""
        return shown_policy(self.request.network_policy)

    @property
    def network_key(self) -> str:
        """A hash of the network policy and its secrets. Containers with equal hashes have the same
        policy and secrets."""
        return network_key(self.request.network_policy)

    def add_files(self, file_ids: Iterable[str]) -> None:
        """Add uploaded files. Files that the container already has are not added again. The files
        are written into the sandbox environment when the container is used next."""
        existing = {*self._pending_file_ids, *self._loaded_file_ids}
        self._pending_file_ids += [each for each in dict.fromkeys(file_ids) if each not in existing]

    def add_skills(self, skills: Iterable[ContainerSkill]) -> None:
        """Add skills. A new skill replaces the skill of the same name.

        The skills are mounted when the container is used next.
        """
        self._skills.update((each.name, each) for each in skills)

    @property
    def skills(self) -> tuple[SkillSummary, ...]:
        """Name and description of each skill in the container."""
        return tuple(skill.summary for skill in self._skills.values())

    async def run_python(self, code: str) -> tuple[ExecutionResult, tuple[wc.ContainerFile, ...]]:
        """Run Python code. Returns the result and the files that the code wrote. Raises
        ``ToolError``."""
        async with _ExclusiveUse(self) as box:
            outcome = await box.python(
                code, timeout_s=self._policy.code_timeout_s, max_chars=self._policy.max_output
            )
            return outcome, await self.refresh_files(box)

    async def ensure_ready(self) -> None:
        """Start the container's sandbox environment if it is not running yet. Raises ``ToolError``,
        ``NotFound``."""
        async with _ExclusiveUse(self):
            pass

    async def run_command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_output: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        """Run a shell command and return its result. ``on_output`` receives the output while the
        command runs. Raises ``ToolError``."""
        async with _ExclusiveUse(self) as box:
            outcome = await box.command(
                command,
                timeout_s=min(timeout_s, self._policy.code_timeout_s),
                max_chars=min(max_output, self._policy.max_output),
                on_output=on_output,
            )
            await self.refresh_files(box)
            return outcome

    async def write_file(self, name: str, content: bytes) -> wc.ContainerFile:
        """Write a file that the user provides. Only the last part of ``name`` counts. Raises
        ``ToolError`` if the disk is full."""
        name = safe_file_name(name)
        async with _ExclusiveUse(self) as box:
            await box.write(name, content)
            await self.refresh_files(box, "user", name)
            return self._files[name]

    async def list_files(self) -> tuple[wc.ContainerFile, ...]:
        """Return the metadata of all files in the container, ordered by path."""
        async with _ExclusiveUse(self) as box:
            await self.refresh_files(box)
            return tuple(self._files[path] for path in sorted(self._files))

    async def get_file(self, file_id: str) -> wc.ContainerFile:
        """Return a file's metadata. Raises ``NotFound``."""
        for file in await self.list_files():
            if file.id == file_id:
                return file
        raise _file_not_found(file_id)

    async def read_file(self, file_id: str) -> bytes:
        """Return a file's content. Raises ``NotFound``."""
        file = await self.get_file(file_id)
        async with _ExclusiveUse(self) as box:
            content = await box.read(file.path.removeprefix(_HOME))
        if content is None:
            raise _file_not_found(file_id)
        return content

    async def delete_file(self, file_id: str) -> None:
        """Delete a file. Raises ``NotFound``."""
        file = await self.get_file(file_id)
        async with _ExclusiveUse(self) as box:
            await box.remove(file.path.removeprefix(_HOME))
            await self.refresh_files(box)

    async def close(self) -> None:
        """Close the container's sandbox environment. Everything in it is lost."""
        self._is_closed = True
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def ensure_open(self) -> Box:
        """Start the container's sandbox environment if it is not running yet, and add the requested
        files and skills that are missing. Return the environment. Raises ``ToolError``,
        ``NotFound``."""
        self.check_active()
        if self._box is None:
            self._box = await self._open_box()
            if self._is_closed:  # while the box was being opened
                await self.close()
            self.check_active()
        while self._pending_file_ids:
            name, content = await self._uploads.read(self.tenant, self._pending_file_ids[0])
            await self._box.write(safe_file_name(name), content)
            await self.refresh_files(self._box, "user", safe_file_name(name))
            self._loaded_file_ids.add(self._pending_file_ids.pop(0))
        for skill in tuple(self._skills.values()):
            if self._mounted_skill_keys.get(skill.name) != skill.key:
                await _mount_skill(self._box, skill)
                self._mounted_skill_keys[skill.name] = skill.key
        return self._box

    async def _open_box(self) -> Box:
        box = await self._open(self._policy.box_limits(self.request.memory_limit or "1g"))
        policy = self.request.network_policy
        if policy is None or policy.type == "disabled":
            return box
        try:
            if self._egress is None:
                raise ToolError("This server has no network for containers.")
            await box.open_network(await asyncio.to_thread(self._egress, policy))
        except BaseException:
            await box.close()
            raise
        return box

    async def refresh_files(
        self, box: Box, source: Literal["user", "assistant"] = "assistant", name: str | None = None
    ) -> tuple[wc.ContainerFile, ...]:
        """List the files in the sandbox environment and update the metadata. Return the metadata of
        the files that are new or have changed since the last call.

        - ``name``: the path of a file that was just written.
        - ``source``: who wrote this file. For all other new files, the source ``assistant`` is
          recorded.
        """
        current = {entry.path: entry for entry in await box.list_files()}
        for path in self._files.keys() - current.keys():
            del self._files[path]
        changed = [
            path for path, entry in current.items() if self._known_entries.get(path) != entry
        ]
        for path in changed:
            existing = self._files.get(path)
            self._files[path] = wc.ContainerFile(
                id=existing.id if existing is not None else self._ids("cfile"),
                bytes=current[path].size,
                container_id=self.id,
                created_at=existing.created_at if existing is not None else int(self._clock()),
                path=_HOME + path,
                source=source if path == name else existing.source if existing else "assistant",
            )
        self._known_entries = current
        return tuple(self._files[path] for path in changed)


def _file_not_found(file_id: str) -> NotFound:
    return NotFound(f"Container file '{file_id}' not found.", param="file_id")


async def _mount_skill(box: Box, skill: ContainerSkill) -> None:
    files = (await skill.read()).files
    scripts = [path for path, member in files.items() if member.is_executable]
    await box.share(skill.name, {path: each.content for path, each in files.items()}, scripts)


class _ExclusiveUse:
    """An async context manager that gives one task exclusive use of a container. ``async with``
    returns the container's sandbox environment. A container does not expire while it is in use."""

    def __init__(self, container: Container) -> None:
        self._container = container

    async def __aenter__(self) -> Box:
        container = self._container
        container.check_active()  # from here on, it is active until it is closed
        container._use_count += 1
        try:
            await container._lock.acquire()
            try:
                return await container.ensure_open()
            except BaseException:
                container._lock.release()
                raise
        except BaseException:
            container._use_count -= 1
            raise

    async def __aexit__(self, *exc: object) -> None:
        container = self._container
        container._lock.release()
        container._use_count -= 1
        container._last_used = container._clock()


def safe_file_name(name: str) -> str:
    """Return the last part of a path: the file name without folders and without leading dots."""
    return name.replace("\\", "/").rsplit("/", 1)[-1].lstrip(".") or "file"
