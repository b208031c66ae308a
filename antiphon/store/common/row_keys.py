"""The keys with which the rows of a store are encrypted."""

from __future__ import annotations

from antiphon.errors import SetupError, StoreError
from antiphon.store.base import Store
from antiphon.store.values import SERVER, Document
from antiphon.support.installation import antiphon_command

from .row_cipher import RowCipher, is_sealed

#: Name of a value that shows whether the rows are encrypted, and with which keys.
_ENCRYPTION = "encryption"


async def rewrite_store(store: Store, cipher: RowCipher | None) -> int:
    """Write all rows of a store again with its cipher. Return how many rows were written. No other
    process may use the store. Raises ``StoreError``."""
    count = await store.rewrite_rows()
    used = () if cipher is None or not cipher.encrypts else cipher.key_ids[:1]

    def forget_others(ids: list[str]) -> None:
        ids[:] = used

    await _used_keys(store).update(forget_others)
    return count


def _used_keys(store: Store) -> Document[list[str]]:
    """The ids of the keys with which rows may be encrypted. The newest key encrypts them."""
    return Document(store.values, SERVER, _ENCRYPTION, list[str])


async def check_keys(store: Store, cipher: RowCipher | None) -> None:
    """Note in a store with which keys its rows are encrypted. Raises ``SetupError`` if one of these
    keys is missing."""
    try:
        if cipher is not None:
            await _note_keys(_used_keys(store), cipher)
            return
        note = await store.values.read(SERVER, _ENCRYPTION)
    except StoreError as error:
        raise SetupError(f"store: {error.message}") from None
    if note is not None and is_sealed(note):
        command = antiphon_command("migrate --rewrite")
        raise SetupError(
            "store: its rows are encrypted. Set store_encrypted and encryption_keys, or decrypt"
            f" all rows: {command}"
        )


async def _note_keys(used: Document[list[str]], cipher: RowCipher) -> None:
    if lost := [each for each in await used.load() if each not in cipher.key_ids]:
        raise SetupError(
            f"store: rows need keys that are not in encryption_keys: {', '.join(lost)}"
        )
    newest = cipher.key_ids[0]

    def add(ids: list[str]) -> None:
        if newest not in ids:
            ids.append(newest)

    if cipher.encrypts:
        await used.update(add)
