"""Encryption of rows before they reach the database.

The operator's keys encrypt each binary column: the contents of responses, conversations, events,
files and other objects. Columns in which the database must search stay readable: ids, names, times,
numbers, and the chunks of vector stores with their vectors. The encryption protects copies of the
database, such as backups and disks. It does not protect against somebody who can change the
database, because a row can be replaced by another one.
"""

from __future__ import annotations

from antiphon.errors import StoreError
from antiphon.security.encryption import DecryptionError, Encryptor

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
