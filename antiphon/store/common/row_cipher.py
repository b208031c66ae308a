"""Encryption of rows before they reach the database.

The operator's keys encrypt each binary column: the contents of responses, conversations, events,
files and other objects. Columns in which the database must search stay readable: ids, names, times,
numbers, and the chunks of vector stores with their vectors. The encryption protects copies of the
database, such as backups and disks. It does not protect against somebody who can change the
database, because a row can be replaced by another one.
"""

from __future__ import annotations

from antiphon.errors import SetupError, StoreError
from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.store.base import Store
from antiphon.store.values import SERVER, Document
from antiphon.support.installation import antiphon_command

#: First bytes of an encrypted value. No other binary value begins with them: JSON cannot, and token
#: ids would be larger than any vocabulary.
_MARK = b"\xffsealed\xff"
_PURPOSE = "row of the store"


class RowCipher:
    """Encrypts values with the first key of ``encryptor``, and decrypts them with any of its keys.
    ``encrypts``: whether new values are encrypted. Values that are not encrypted can always be
    read."""

    def __init__(self, encryptor: Encryptor, *, encrypts: bool = True) -> None:
        self._encryptor = encryptor
        #: Whether new values are encrypted.
        self.encrypts = encrypts

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the keys. The first one encrypts."""
        return self._encryptor.key_ids

    def seal(self, value: bytes | memoryview) -> bytes | memoryview:
        """Encrypt the value of a column. A ``memoryview`` is returned as it is: the caller says
        thereby that the value must stay readable for the database."""
        if not self.encrypts or isinstance(value, memoryview):
            return value
        return _MARK + self._encryptor.encrypt_bytes(value, purpose=_PURPOSE, tenant="")

    def unseal(self, value: bytes) -> bytes:
        """Decrypt a value if it is encrypted. Raises ``StoreError``."""
        if not value.startswith(_MARK):
            return value
        try:
            sealed = value[len(_MARK) :]
            return self._encryptor.decrypt_bytes(sealed, purpose=_PURPOSE, tenant="")
        except DecryptionError:
            raise StoreError(
                "A row of the store was encrypted with a key that is not in encryption_keys."
            ) from None


def is_sealed(value: bytes) -> bool:
    """Whether a value was encrypted by a ``RowCipher``."""
    return value.startswith(_MARK)


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
