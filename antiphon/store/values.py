"""The contract of values: named bytes that a store keeps for a tenant or for the whole server.

A store offers two operations on a value: read it, and replace it if nobody has changed it meanwhile
(compare and set). API keys, secrets, skills, rate limits and the directory of containers can be
kept in such values, so a store needs no tables for them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from antiphon.errors import StoreError

__all__ = ["SERVER", "Document", "ValueStore"]

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
        has replaced the content meanwhile. Returns after the new content is durable.
        """
        while True:
            old = await self._values.read(*self._key)
            content = self._content_of(old)
            result = change(content)
            new = self._encode(content)
            if new == old or await self._values.replace(*self._key, old, new):
                return result

    def _content_of(self, value: bytes | None) -> _T:
        if value is None:
            return self._new()
        try:
            return self._decode(value)
        except msgspec.MsgspecError as error:
            raise StoreError("The store could not be read.") from error
