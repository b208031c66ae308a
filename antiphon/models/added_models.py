"""The models that operators add while the server runs, and the search for such models.

They are kept in a file beside the settings. After each change of the file, the server reloads its
settings, so an added model is served exactly as one of the settings file: every process of the
server learns of it, and the running requests of a removed model finish.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

from antiphon.config.added_models import ModelTables, read_models, write_models
from antiphon.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    SetupError,
    StoreError,
    invalid_field,
)
from antiphon.limits.refusals import quota_exceeded, server_is_busy
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.fair_threads import current_tenant
from antiphon.support.file_locks import lock
from antiphon.support.tasks import BackgroundTasks
from antiphon.wire.admin.added_models import (
    AddedModel,
    AddedModelList,
    AddModel,
    FoundModel,
    FoundModelList,
    ModelOptions,
)

from .catalog import ServedModel
from .download import SPEC
from .gpu import usable_gpu
from .suggestions import SUGGESTIONS, Machine, problem, this_machine

_log = structlog.get_logger(__name__)

_GB = 10**9
#: Number of results of a search at Hugging Face.
_FOUND = 20
#: Seconds after which a model that a client has added is unloaded if no request uses it.
_IDLE_S = 600.0
#: Seconds that changes may take when the server ends.
_CLOSE_S = 5.0
#: Number of added models above which clients cannot add further ones.
_MOST = 100
#: How many models that clients name are looked up at a time, in all and for one tenant. If Hugging
#: Face does not answer, a look-up occupies a thread for half a minute.
_MAX_LOOKUPS, _LOOKUPS_PER_TENANT = 6, 4


class Reloads(Protocol):
    """Reloads the settings of all processes of the server."""

    @property
    def is_possible(self) -> bool:
        """Whether the server can reload its settings."""

    async def reload(self) -> bool:
        """Reload the settings. Returns whether they are valid."""


class AddedModels:
    """Adds, changes and removes models.

    ``path``: the file; None if operators cannot add models. ``served``: returns the served models.
    ``check_exists``: raises ``SetupError`` for a model whose files cannot be found. ``machine``:
    returns what a model may use here; it may block.
    """

    def __init__(
        self,
        path: Path | None,
        served: Callable[[], Sequence[ServedModel]],
        reloads: Reloads,
        check_exists: Callable[[str], Coroutine[Any, Any, None]],
        machine: Callable[[], Machine] = lambda: this_machine(usable_gpu()),
    ) -> None:
        self._path = path
        self._served = served
        self._check_exists = check_exists
        self._machine = machine
        self._lock = asyncio.Lock()
        self._changes = BackgroundTasks("changes of the added models")
        self._lookups = BackgroundTasks("look-ups of models that clients name")
        self._lookup_slots = FairLimiter(_MAX_LOOKUPS, max_per_tenant=_LOOKUPS_PER_TENANT)
        self._reloads = reloads
        #: Patterns of the repositories whose models any client may add.
        self.allowed: tuple[str, ...] = ()

    async def close(self) -> None:
        """Wait until the changes that have begun are finished."""
        await self._lookups.close()
        await self._changes.wait(_CLOSE_S)

    async def list(self) -> AddedModelList:
        """Return the added models."""
        tables = {} if self._path is None else await asyncio.to_thread(_read, self._path)
        return AddedModelList(data=tuple(_added(name, tables[name]) for name in tables))

    async def add(self, wanted: AddModel) -> AddedModel:
        """Add a model, which is loaded at the first request for it. Raises
        ``Conflict`` if there is a model with this name, and ``InvalidRequest`` if the source is no
        repository of Hugging Face or the model cannot be configured so."""
        spec = _repository(wanted.source)
        if spec is None:
            raise invalid_field(
                "source",
                "expected a repository of Hugging Face, such as owner/repo:Q4_K_M or"
                " hf:owner/repo/file.gguf.",
            )
        name = wanted.name or spec["repo"].partition("/")[2].removesuffix("-GGUF")
        table = {"source": wanted.source, "load": "demand", **_given(wanted)}

        def added(tables: ModelTables) -> ModelTables:
            self._check_free(name, tables)
            return {**tables, name: table}

        await self._change(name, added)
        return _added(name, table)

    async def admit(self, name: str) -> None:
        """Add a model that a client names, if the operator allows its repository and it exists:
        otherwise misspelt names would fill the list. Does nothing for a model that is served
        already, and for all other names. Raises ``RequestError``."""
        spec = _repository(name) if self.allowed else None
        if (
            spec is None
            or not any(fnmatchcase(spec["repo"], pattern) for pattern in self.allowed)
            or self._is_served(name)
        ):
            return
        tenant = current_tenant.get()
        if not self._lookup_slots.try_acquire(tenant):
            raise server_is_busy("too many models are looked up", retry_after_s=5)
        try:
            await self._lookups.finish(self._look_up(tenant, name))
        except SetupError as error:
            message = f"The model '{name}' does not exist or cannot be added: {error}"
            raise NotFound(message, param="model", code="model_not_found") from None
        table = {"source": name, "load": "demand", "idle_unload_s": _IDLE_S}

        def added(tables: ModelTables) -> ModelTables:
            self._check_free(name, {})
            if name not in tables and len(tables) >= _MOST:
                raise quota_exceeded("added models", param="model", added_models=_MOST)
            return {name: table, **tables}  # perhaps another process has just added it

        with suppress(Conflict):  # another request has added it
            await self._change(name, added)

    async def _look_up(self, tenant: str, name: str) -> None:
        """Check that a model exists, in a slot that the tenant has taken."""
        try:
            await self._check_exists(name)
        finally:
            self._lookup_slots.release(tenant)

    async def change(self, name: str, options: ModelOptions) -> AddedModel:
        """Replace the options of an added model. Its next request loads it again. Raises
        ``NotFound`` and ``InvalidRequest``."""

        def changed(tables: ModelTables) -> ModelTables:
            table = _named(name, tables)
            kept = {key: table[key] for key in ("source", "load") if key in table}
            return {**tables, name: {**kept, **_given(options)}}

        return _added(name, (await self._change(name, changed))[name])

    async def remove(self, name: str) -> None:
        """Remove an added model. Its running requests finish. Raises ``NotFound``."""

        def rest(tables: ModelTables) -> ModelTables:
            _named(name, tables)
            return _with(name, None, tables)

        await self._change(name, rest)

    async def search(self, text: str) -> FoundModelList:
        """Return the suggested models that match a text, and then repositories of Hugging Face with
        GGUF files, the most downloaded first."""
        machine = await asyncio.to_thread(self._machine)
        wanted = text.casefold()
        suggested = tuple(
            FoundModel(
                name=each.name,
                source=each.source,
                size_bytes=int(each.size_gb * _GB),
                licence=each.licence,
                good_for=each.good_for,
                problem=problem(each, machine),
                is_suggested=True,
            )
            for each in SUGGESTIONS
            if wanted in each.name.casefold()
        )
        if not wanted:
            return FoundModelList(data=suggested)
        from .huggingface_hub import Hub

        try:
            repositories = await Hub().search(text, _FOUND)
        except SetupError as error:
            return FoundModelList(data=suggested, problem=str(error))
        return FoundModelList(
            data=(
                *suggested,
                *(
                    FoundModel(name=repo, source=f"hf:{repo}", downloads=downloads, licence=licence)
                    for repo, downloads, licence in repositories
                ),
            )
        )

    def _is_served(self, name: str) -> bool:
        return any(name in (each.name, *each.aliases) for each in self._served())

    def _check_free(self, name: str, tables: ModelTables) -> None:
        """Raise ``Conflict`` if there is a model with this name."""
        if name in tables or self._is_served(name):
            raise Conflict(f"There is a model named '{name}' already.", param="name")

    async def _change(self, name: str, change: Callable[[ModelTables], ModelTables]) -> ModelTables:
        """Change one model in the file, reload the settings, and return the content of the file.
        If the new settings are not valid, restore the model. This is done to its end, even if the
        client goes away."""
        if self._path is None or not self._reloads.is_possible:
            raise InvalidRequest(
                "This server cannot add models: its setting 'added_models' is not set, or it cannot"
                " reload its settings."
            )
        return await self._changes.finish(self._change_now(self._path, name, change))

    async def _change_now(
        self, path: Path, name: str, change: Callable[[ModelTables], ModelTables]
    ) -> ModelTables:
        async with self._lock:
            before, after = await asyncio.to_thread(_rewrite, path, change)
            if await self._reloads.reload():
                return after
            # Only this model is restored: meanwhile, other processes may have changed others.
            await asyncio.to_thread(_rewrite, path, partial(_with, name, before.get(name)))
        raise InvalidRequest("The server refuses these settings of the model; its log says why.")


def _repository(source: str) -> re.Match[str] | None:
    """Parse a source. Returns None if it names no repository of Hugging Face."""
    spec = SPEC.fullmatch(source) if source.isprintable() else None
    parts = () if spec is None else (*spec["repo"].split("/"), *(spec["file"] or "x").split("/"))
    return spec if all(part and part[0] not in ".-" for part in parts) else None


def _given(options: ModelOptions) -> dict[str, Any]:
    """Return the options that are set."""
    return {
        name: value
        for name in ModelOptions.__struct_fields__
        if (value := getattr(options, name)) is not None
    }


def _added(name: str, table: Mapping[str, Any]) -> AddedModel:
    options: dict[str, Any] = {key: table.get(key) for key in ModelOptions.__struct_fields__}
    return AddedModel(id=name, source=str(table.get("source")), **options)


def _named(name: str, tables: ModelTables) -> Mapping[str, object]:
    """Return the options of a model in the file. Raises ``NotFound``."""
    if name not in tables:
        raise NotFound(
            f"The model '{name}' was not added over the API.",
            param="model",
            code="model_not_found",
        )
    return tables[name]


def _with(name: str, table: Mapping[str, object] | None, tables: ModelTables) -> ModelTables:
    """Return the models with another table for one of them; without this model if it is None."""
    if table is not None:
        return {**tables, name: table}
    return {key: each for key, each in tables.items() if key != name}


def _rewrite(
    path: Path, change: Callable[[ModelTables], ModelTables]
) -> tuple[ModelTables, ModelTables]:
    """Change the file, and return what it contained before and what it contains now. No other
    process changes it meanwhile. Raises ``StoreError``."""
    with _usable(path), _locked(path):
        before = read_models(path)
        after = change(before)
        write_models(path, after)
    return before, after


def _read(path: Path) -> ModelTables:
    with _usable(path):
        return read_models(path)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Raise ``StoreError`` if the file cannot be read or written, and log the reason."""
    try:
        yield
    except (SetupError, OSError) as error:
        _log.error("the added models cannot be read or changed", path=str(path), reason=str(error))
        raise StoreError(
            "The file of the added models cannot be read or changed; the server's log says why."
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("ab") as file:
        lock(file.fileno())  # ends when the file is closed
        yield
