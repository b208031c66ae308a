"""Store the inputs, outputs and tokens of large responses in blobs outside of the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import structlog
from msgspec import Struct

from antiphon.errors import StoreError
from antiphon.store.files import BlobRef, BlobStorage
from antiphon.store.sql.row_mapping import Columns, Row

_log = structlog.get_logger(__name__)

#: Indexes of the columns input, output and tokens in a row from ``response_row``.
_INPUT, _OUTPUT, _TOKENS = 6, 7, 9

#: Encodes a reference to a blob. If the contents of a response are in a blob, its column ``input``
#: holds this value.
encode_reference: Callable[[BlobRef], bytes] = msgspec.json.Encoder().encode
_decode_reference = msgspec.json.Decoder(BlobRef).decode


class ResponseContents(Struct, frozen=True):
    """The large columns of a response: its input, output and tokens."""

    input: bytes
    output: bytes
    tokens: bytes | None

    @property
    def size(self) -> int:
        """The size of ``input``, ``output`` and ``tokens`` together, in bytes."""
        return len(self.input) + len(self.output) + len(self.tokens or b"")


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(ResponseContents).decode


class LargeResponses:
    """Writes the contents of large responses to blobs, and reads them from blobs. Until ``use`` is
    called, all contents stay in the database."""

    def __init__(self) -> None:
        self._blobs: BlobStorage | None = None
        self._min_bytes = 0

    def use(self, blobs: BlobStorage, min_bytes: int) -> None:
        """From now on, keep the contents of responses with at least ``min_bytes`` bytes in
        ``blobs``. If ``min_bytes`` is 0, no further response is kept in blobs. Responses that are
        already in blobs stay readable."""
        self._blobs = blobs
        self._min_bytes = min_bytes

    async def put(self, row: Columns) -> tuple[Columns, str | None]:
        """Write the contents of a response to a blob if they are large. ``row``: the columns of
        ``response_row``.

        Return the columns to store in the database, and the key of the blob. If the contents are
        not large or the blob cannot be written, the columns contain the contents, and the key is
        None.
        """
        contents = ResponseContents(row[_INPUT], row[_OUTPUT], row[_TOKENS])
        if self._blobs is None or not 0 < self._min_bytes <= contents.size:
            return row, None
        try:
            blob = await put_contents(self._blobs, contents)
        except StoreError as error:
            _log.warning("a large response stays in the database", error=error.message)
            return row, None
        columns = list(row)
        columns[_INPUT], columns[_OUTPUT], columns[_TOKENS] = encode_reference(blob), b"", None
        return tuple(columns), blob.key

    async def _restore(self, reference: bytes) -> ResponseContents:
        if self._blobs is None:
            raise StoreError(
                "The response is in blob storage. Set `files` to the URL of this storage."
            )
        return await read_contents(self._blobs, reference)

    async def restore_stored(self, row: Row) -> Row:
        """Return the columns ``body``, ``input``, ``output``, ``base``, ``tokens``, ``fingerprint``
        and ``times`` of a response.

        ``row``: these columns as they are in the database, followed by the key of a blob or None.
        If there is a blob, the values of ``input``, ``output`` and ``tokens`` are read from the
        blob.
        """
        body, input_, _, base, _, fingerprint, times, blob = row
        if blob is None:
            return row[:-1]
        contents = await self._restore(input_)
        return body, contents.input, contents.output, base, contents.tokens, fingerprint, times

    async def restore_items(self, row: Row) -> Row:
        """Return the columns ``input`` and ``output`` of a response. If the contents of the
        response are in a blob, these columns are read from the blob. ``row``: the two columns as
        they are in the database, followed by the key of the blob or None."""
        if row[2] is None:
            return row[:2]
        contents = await self._restore(row[0])
        return contents.input, contents.output


async def put_contents(blobs: BlobStorage, contents: ResponseContents) -> BlobRef:
    """Store contents in a new blob, and return a reference to it. Raises ``StoreError``."""

    async def chunks() -> AsyncIterator[bytes]:
        yield _pack(contents)

    return await blobs.put(chunks())


async def read_contents(blobs: BlobStorage, reference: bytes) -> ResponseContents:
    """Read the contents of a response from its blob. ``reference``: the value of the response's
    column ``input``, which is a reference to the blob. Raises ``StoreError``."""
    try:
        blob = _decode_reference(reference)
        return _unpack(b"".join([chunk async for chunk in blobs.read(blob)]))
    except msgspec.MsgspecError as error:
        raise StoreError("The store could not be read.") from error
