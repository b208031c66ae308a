"""``antiphon key … --store``: manage API keys in the store, whether or not a server runs.

Usually the command opens the store itself. In two cases it sends requests to the running server
instead: if the store is in the memory of the server's process, or if the running server uses the
SQLite store. The command cannot open an SQLite store while a server uses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict

from antiphon.bootstrap.storage import store_cipher
from antiphon.config.load import LoadedSettings
from antiphon.config.options import flag_name
from antiphon.config.settings import Settings
from antiphon.errors import InvalidRequest, RequestError, SetupError, StoreError
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.resources.admin.audit import AuditTrail
from antiphon.store import is_postgres, open_store
from antiphon.wire.admin.api_keys import CreateApiKey
from antiphon.wire.object_ids import new_id
from antiphon.wire.parsing.fields import convert

from .client import Json, Server, find_server

#: Origin of the setting ``store`` if the flag of the command has named a store.
STORE_FLAG = "--store"
_PATH = "/antiphon/keys"


def new_key(loaded: LoadedSettings, fields: Mapping[str, object]) -> str:
    """Create an API key and return its value, the secret. ``fields``: the fields of
    ``CreateApiKey``. Raises ``SetupError``."""
    try:
        wanted = convert(dict(fields), CreateApiKey, "")
    except InvalidRequest as error:
        field = (error.param or "").partition("[")[0]
        flag = "NAME" if field == "name" else flag_name(field)
        raise SetupError(f"antiphon key new: {flag}: {error.message}") from None
    create = _KeyAction("created", wanted.name, lambda keys: keys.create(wanted))
    return str(_run(loaded, create)["value"])


def list_keys(loaded: LoadedSettings) -> list[Json]:
    """Return all API keys with their names and limits, but without their secrets. Raises
    ``SetupError``."""
    action = _KeyAction("", "", lambda keys: keys.list())
    found: list[Json] = _run(loaded, action)["data"]
    return found


def rotate_key(loaded: LoadedSettings, name: str) -> str:
    """Replace the secret of an API key. Returns the new secret. Raises ``SetupError``."""
    return str(_run(loaded, _KeyAction("rotated", name, lambda keys: keys.rotate(name)))["value"])


def revoke_key(loaded: LoadedSettings, name: str) -> None:
    """Revoke a key. Raises ``SetupError``."""
    _run(loaded, _KeyAction("revoked", name, lambda keys: keys.revoke(name)))


class _Keys(Protocol):
    """Access to the API keys, either in a store or through a running server."""

    async def list(self) -> object: ...
    async def create(self, wanted: CreateApiKey) -> object: ...
    async def rotate(self, name: str) -> object: ...
    async def revoke(self, name: str) -> object: ...


class _KeyAction(NamedTuple):
    """An action on the API keys. ``change``: the verb for the audit log, such as ``rotated``; "" if
    the action changes nothing. ``name``: the name of the key, for the audit log. ``run`` performs
    the action."""

    change: str
    name: str
    run: Callable[[_Keys], Awaitable[object]]


class _ServerKeys:
    """Access to the API keys through a running server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def list(self) -> object:
        return self._server.get(_PATH)

    async def create(self, wanted: CreateApiKey) -> object:
        given = {name: value for name, value in asdict(wanted).items() if value is not None}
        return self._server.post(_PATH, given)

    async def rotate(self, name: str) -> object:
        return self._server.post(f"{_PATH}/{quote(name)}/rotate")

    async def revoke(self, name: str) -> object:
        return self._server.delete(f"{_PATH}/{quote(name)}")


def _run(loaded: LoadedSettings, action: _KeyAction) -> Any:
    """Run an action on the API keys. Returns its result as dictionaries, lists and plain values.
    Raises ``SetupError``."""
    try:
        return msgspec.to_builtins(asyncio.run(_act(loaded, action)))
    except (RequestError, StoreError) as error:
        raise SetupError(str(error)) from None


async def _act(loaded: LoadedSettings, action: _KeyAction) -> object:
    settings = loaded.settings
    # A running server uses the store of the settings, not a store that the flag names.
    is_named = loaded.origins.get("store") == STORE_FLAG
    if settings.store == "memory:":
        if is_named:
            raise SetupError("--store: the command cannot open memory:, only a running server can")
        return await action.run(_ServerKeys(find_server(loaded)))
    try:
        store = await open_store(settings.store, cipher=store_cipher(settings))
    except SetupError:
        server = find_server(loaded)
        if is_named or is_postgres(settings.store) or not server.is_listening():
            raise
        return await action.run(_ServerKeys(server))
    try:
        keys = ApiKeys(store.keys, clock=_clock, timer=time.monotonic, reserved=_names(settings))
        result = await action.run(keys)
        if action.change:
            trail = AuditTrail(store.audit, clock=_clock, ids=_new_id)
            await trail.record(f"api_key.{action.change}", action.name)
        return result
    finally:
        await store.close()


def _names(settings: Settings) -> list[str]:
    return [key.name or key.tenant for key in settings.keys]


def _new_id(prefix: str) -> str:
    return new_id(prefix, _clock())


def _clock() -> float:
    return time.time()  # noqa: TID251 - the clock of the command
