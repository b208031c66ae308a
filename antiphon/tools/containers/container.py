"""One container: a box that is opened when it is first needed, and its files, which have ids. It
knows no tool and no HTTP, and not how a box is isolated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.sandbox.base import Box, ExecutionResult, FileEntry, Limits, OutputCallback
from antiphon.wire import containers as wc

from .skills import ContainerSkill

__all__ = ["Container", "ContainerPolicy", "Uploads", "safe_file_name"]

_HOME = "/mnt/data/"


class Uploads(Protocol):
    """What clients have uploaded."""

    async def name(self, tenant: str, file_id: str) -> str | None:
        """What it is called; None: there is no such file."""

    async def read(self, tenant: str, file_id: str) -> tuple[str, bytes]:
        """Its name and content. Raises ``NotFound``."""


class ContainerPolicy(Struct, frozen=True, kw_only=True):
    """What the operator allows. ``idle_s``: how long a container is kept that nobody uses;
    ``most``: how many a tenant may have at a time; ``memory``: the highest limit there is;
    ``code_timeout_s``: seconds that one call may run; ``output``: characters kept of it."""

    idle_s: float = 1200
    max_containers: int = 16
    memory: wc.Memory = "1g"
    disk_bytes: int = 256 << 20
    processes: int = 128
    code_timeout_s: float = 60
    max_output: int = 20_000

    def box_limits(self, memory: wc.Memory) -> Limits:
        """Of a box."""
        return Limits(
            memory_bytes=wc.MEMORY[memory],
            disk_bytes=self.disk_bytes,
            processes=self.processes,
        )

    def check(self, memory: wc.Memory | None, path: str) -> None:
        """Raises ``InvalidRequest`` for more memory than there is."""
        if memory is not None and wc.MEMORY[memory] > wc.MEMORY[self.memory]:
            raise InvalidRequest(
                f"Containers of this server have at most {self.memory} of memory.",
                param=path,
                code="invalid_value",
            )


class Container:
    """One container. Its box is opened when it is first needed, with the files it was to have."""

    def __init__(
        self,
        tenant: str,
        request: wc.CreateContainer,
        *,
        id: str,
        rules: ContainerPolicy,
        open: Callable[[Limits], Awaitable[Box]],
        uploads: Uploads,
        clock: Callable[[], float],
        ids: Callable[[str], str],
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.request = request
        self._rules = rules
        self._open = open
        self._uploads = uploads
        self._clock = clock
        self._ids = ids
        self._lock = asyncio.Lock()
        self._use_count = 0
        self._created = self._last_used = clock()
        self._is_closed = False
        self._box: Box | None = None
        #: Uploaded files it is to have, and those it has been given.
        self._pending_file_ids = list(dict.fromkeys(request.file_ids))
        self._loaded_file_ids: set[str] = set()
        #: Skills it is to have, by their names, and which of them lie in its box.
        self._skills: dict[str, ContainerSkill] = {}
        self._mounted_skill_keys: dict[str, str] = {}
        self._known_entries: dict[str, FileEntry] = {}
        #: Path → the file as it is shown.
        self._files: dict[str, wc.ContainerFile] = {}

    @property
    def idle_s(self) -> float:
        """How long it is kept that nobody uses it."""
        after = self.request.expires_after
        return self._rules.idle_s if after is None else after.minutes * 60

    @property
    def is_active(self) -> bool:
        """It can be used."""
        if self._is_closed or (self._box is not None and not self._box.is_alive):
            return False
        return bool(self._use_count) or self._clock() - self._last_used < self.idle_s

    @property
    def last_used_at(self) -> float:
        """When it was last used."""
        return self._last_used

    @property
    def is_busy(self) -> bool:
        """Something is done in it."""
        return self._use_count > 0

    def expire(self) -> None:
        """Nobody can use it any more; what it holds goes with the next sweep."""
        self._is_closed = True

    @property
    def is_unused(self) -> bool:
        """Nobody has used it yet, or is about to."""
        return self._box is None and not self._use_count and not self._is_closed

    @property
    def resource(self) -> wc.Container:
        """As the API shows it."""
        return wc.Container(
            id=self.id,
            created_at=int(self._created),
            name=self.request.name,
            status="active" if self.is_active else "expired",
            expires_after=wc.ExpiresAfter(minutes=max(1, round(self.idle_s / 60))),
            last_active_at=int(self._last_used),
            memory_limit=self.request.memory_limit or "1g",
        )

    def add_files(self, file_ids: Iterable[str]) -> None:
        """Uploaded files that are to be there when it is used next, once each."""
        known = {*self._pending_file_ids, *self._loaded_file_ids}
        self._pending_file_ids += [each for each in dict.fromkeys(file_ids) if each not in known]

    def add_skills(self, skills: Iterable[ContainerSkill]) -> None:
        """Skills that are to be there when it is used next, in place of those of the same names."""
        self._skills.update((each.name, each) for each in skills)

    @property
    def skills(self) -> tuple[ContainerSkill, ...]:
        """Those it has."""
        return tuple(self._skills.values())

    async def run_python(self, code: str) -> tuple[ExecutionResult, tuple[wc.ContainerFile, ...]]:
        """Run it; what came of it, and the files it made or changed. Raises ``ToolError``."""
        async with _ExclusiveUse(self) as box:
            outcome = await box.python(
                code, timeout_s=self._rules.code_timeout_s, max_chars=self._rules.max_output
            )
            return outcome, await self.refresh_files(box)

    async def ensure_ready(self) -> None:
        """Something can be run in it now. Raises ``ToolError``, ``NotFound``."""
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
        """Run it in a shell; ``told`` hears what it writes, as it comes. Raises ``ToolError``."""
        async with _ExclusiveUse(self) as box:
            outcome = await box.command(
                command,
                timeout_s=min(timeout_s, self._rules.code_timeout_s),
                max_chars=min(max_output, self._rules.max_output),
                on_output=on_output,
            )
            await self.refresh_files(box)
            return outcome

    async def write_file(self, name: str, content: bytes) -> wc.ContainerFile:
        """A file of the user's. Raises ``ToolError`` where there is no room."""
        async with _ExclusiveUse(self) as box:
            await box.write(name, content)
            await self.refresh_files(box, "user", name)
            return self._files[name]

    async def list_files(self) -> tuple[wc.ContainerFile, ...]:
        """All there are, by their paths."""
        async with _ExclusiveUse(self) as box:
            await self.refresh_files(box)
            return tuple(self._files[path] for path in sorted(self._files))

    async def get_file(self, file_id: str) -> wc.ContainerFile:
        """Raises ``NotFound``."""
        for found in await self.list_files():
            if found.id == file_id:
                return found
        raise NotFound(f"Container file '{file_id}' not found.", param="file_id")

    async def read_file(self, file_id: str) -> bytes:
        """Its content. Raises ``NotFound``."""
        found = await self.get_file(file_id)
        async with _ExclusiveUse(self) as box:
            content = await box.read(found.path.removeprefix(_HOME))
        if content is None:
            raise NotFound(f"Container file '{file_id}' not found.", param="file_id")
        return content

    async def delete_file(self, file_id: str) -> None:
        """Raises ``NotFound``."""
        found = await self.get_file(file_id)
        async with _ExclusiveUse(self) as box:
            await box.remove(found.path.removeprefix(_HOME))
            await self.refresh_files(box)

    async def close(self) -> None:
        """What it holds is gone."""
        self._is_closed = True
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def ensure_open(self) -> Box:
        """Its box, with the files and skills that are due. Raises ``ToolError``, ``NotFound``."""
        if not self.is_active and not self._use_count:
            raise ToolError(f"Container '{self.id}' has expired.")
        if self._box is None:
            self._box = await self._open(self._rules.box_limits(self.request.memory_limit or "1g"))
        while self._pending_file_ids:
            name, content = await self._uploads.read(self.tenant, self._pending_file_ids[0])
            await self._box.write(safe_file_name(name), content)
            await self.refresh_files(self._box, "user", safe_file_name(name))
            self._loaded_file_ids.add(self._pending_file_ids.pop(0))
        for skill in self.skills:
            if self._mounted_skill_keys.get(skill.name) != skill.key:
                await _mount_skill(self._box, skill)
                self._mounted_skill_keys[skill.name] = skill.key
        return self._box

    async def refresh_files(
        self, box: Box, source: Literal["user", "assistant"] = "assistant", name: str | None = None
    ) -> tuple[wc.ContainerFile, ...]:
        """The files that have changed since the last look. ``name``: whose file it is by ``by``."""
        now = {entry.path: entry for entry in await box.list_files()}
        for gone in self._files.keys() - now.keys():
            del self._files[gone]
        changed = [path for path, entry in now.items() if self._known_entries.get(path) != entry]
        for path in changed:
            known = self._files.get(path)
            self._files[path] = wc.ContainerFile(
                id=known.id if known is not None else self._ids("cfile"),
                bytes=now[path].size,
                container_id=self.id,
                created_at=known.created_at if known is not None else int(self._clock()),
                path=_HOME + path,
                source=source if path == name else known.source if known else "assistant",
            )
        self._known_entries = now
        return tuple(self._files[path] for path in changed)


async def _mount_skill(box: Box, skill: ContainerSkill) -> None:
    files = (await skill.read()).files
    scripts = [path for path, member in files.items() if member.is_executable]
    await box.share(skill.name, {path: each.content for path, each in files.items()}, scripts)


class _ExclusiveUse:
    """While a container is used it does not expire, and one at a time uses it."""

    def __init__(self, container: Container) -> None:
        self._container = container

    async def __aenter__(self) -> Box:
        used = self._container
        used._use_count += 1
        try:
            await used._lock.acquire()
            try:
                return await used.ensure_open()
            except BaseException:
                used._lock.release()
                raise
        except BaseException:
            used._use_count -= 1
            raise

    async def __aexit__(self, *exc: object) -> None:
        used = self._container
        used._lock.release()
        used._use_count -= 1
        used._last_used = used._clock()


def safe_file_name(name: str) -> str:
    """A file's name without folders."""
    return name.replace("\\", "/").rsplit("/", 1)[-1].lstrip(".") or "file"
