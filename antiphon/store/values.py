"""The contract of values: named bytes that a store keeps for a tenant or for the whole server.

A store offers two operations on a value: read it, and replace it if nobody has changed it meanwhile
(compare and set). API keys, secrets, skills, rate limits and the directory of containers can be
kept in such values, so a store needs no tables for them. A new kind of object that clients create,
list and delete needs only a ``Collection``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from antiphon.errors import StoreError
from antiphon.wire.cursors import PageParams, select_page

__all__ = ["SERVER", "Collection", "Document", "ValueStore", "delete_value"]

_T = TypeVar("_T")
_R = TypeVar("_R")

#: The tenant of values that belong to the whole server. No tenant has this name.
SERVER = ""


class ValueStore(Protocol):
    """The contract of a store of values. ``tenant``: the tenant of the value, or ``SERVER``.
    ``Store.delete_tenant`` deletes the values of a tenant."""

    @abstractmethod
    async def read(self, tenant: str, name: str) -> bytes | None:
        """Return the value with this name. Returns None if there is none."""

    @abstractmethod
    async def replace(self, tenant: str, name: str, old: bytes | None, new: bytes | None) -> bool:
        """Replace the value ``old`` by ``new``. None means that there is no value. Returns after
        the change is durable. Returns False and changes nothing if the value is not ``old``."""

    async def set_default(self, tenant: str, name: str, value: bytes) -> bytes:
        """Return the value with this name. If there is none, store and return ``value``."""
        while (found := await self.read(tenant, name)) is None:
            if await self.replace(tenant, name, None, value):
                return value
        return found


class Document(Generic[_T]):
    """A value that contains JSON. ``kind``: the type of the content. The constructor of this type
    must return an empty content if it is called without arguments."""

    def __init__(self, values: ValueStore, tenant: str, name: str, kind: type[_T]) -> None:
        self._values = values
        self._key = (tenant, name)
        self._new = kind
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(kind).decode

    async def load(self) -> _T:
        """Return the content. Raises ``StoreError``."""
        return self._content_of(await self._values.read(*self._key))

    async def update(self, change: Callable[[_T], _R]) -> _R:
        """Change the content, and return the result of ``change``. Raises ``StoreError``.

        ``change`` gets the content and modifies it in place. It is called again if another caller
        has replaced the content meanwhile. Returns after the new content is durable. If the
        content did not change, nothing is written.
        """
        while True:
            old = await self._values.read(*self._key)
            content = self._content_of(old)
            before = self._encode(content) if old is None else old
            result = change(content)
            new = self._encode(content)
            if new == before or await self._values.replace(*self._key, old, new):
                return result

    def _content_of(self, value: bytes | None) -> _T:
        if value is None:
            return self._new()
        return _decoded(self._decode, value)


class _Entry(msgspec.Struct, frozen=True):
    id: str


class Collection(Generic[_T]):
    """Objects of one kind that tenants create, list and delete. Each object is a value of its own,
    and another value lists the ids of a tenant's objects in the order in which they were created.

    ``name``: the kind of the objects, such as ``batch``; the names of the values begin with it.
    ``kind``: the type of the objects.
    """

    def __init__(self, values: ValueStore, name: str, kind: type[_T]) -> None:
        self._values = values
        self._name = name
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(kind).decode

    async def add(self, tenant: str, id: str, item: _T) -> None:
        """Store a new object. Returns after it is durable."""
        await self._index(tenant).update(lambda ids: ids.append(id))
        await self._values.replace(tenant, self._key(id), None, self._encode(item))

    async def load(self, tenant: str, id: str) -> _T | None:
        """Return an object. Returns None if it is unknown. Raises ``StoreError``."""
        found = await self._values.read(tenant, self._key(id))
        return None if found is None else _decoded(self._decode, found)

    async def update(self, tenant: str, id: str, change: Callable[[_T], _R]) -> _R | None:
        """Change an object in place, and return the result of ``change``, which may be called
        several times. Returns None if the object is unknown. Raises ``StoreError``."""
        key = self._key(id)
        while (old := await self._values.read(tenant, key)) is not None:
            item = _decoded(self._decode, old)
            result = change(item)
            new = self._encode(item)
            if new == old or await self._values.replace(tenant, key, old, new):
                return result
        return None

    async def ids(self, tenant: str) -> tuple[str, ...]:
        """Return the ids of a tenant's objects, in the order in which they were created."""
        return tuple(await self._index(tenant).load())

    async def page(
        self, tenant: str, params: PageParams, *, prefix: str = ""
    ) -> tuple[list[_T], bool]:
        """Return a page of a tenant's objects, and whether there are more. ``prefix``: only objects
        whose ids begin with it. Raises ``InvalidRequest`` for an unknown cursor."""
        entries = [_Entry(id) for id in await self.ids(tenant) if id.startswith(prefix)]
        chosen, has_more = select_page(entries, params)
        found = [await self.load(tenant, entry.id) for entry in chosen]
        return [item for item in found if item is not None], has_more

    async def delete(self, tenant: str, id: str) -> None:
        """Delete an object, if it is there."""

        def forget(ids: list[str]) -> None:
            if id in ids:
                ids.remove(id)

        await delete_value(self._values, tenant, self._key(id))
        await self._index(tenant).update(forget)

    def _index(self, tenant: str) -> Document[list[str]]:
        return Document(self._values, tenant, f"{self._name} index", list[str])

    def _key(self, id: str) -> str:
        return f"{self._name} {id}"


async def delete_value(values: ValueStore, tenant: str, name: str) -> bool:
    """Delete a value. Returns whether there was one."""
    while (found := await values.read(tenant, name)) is not None:
        if await values.replace(tenant, name, found, None):
            return True
    return False


def _decoded(decode: Callable[[bytes], _T], value: bytes) -> _T:
    try:
        return decode(value)
    except msgspec.MsgspecError as error:
        raise StoreError("The store could not be read.") from error
