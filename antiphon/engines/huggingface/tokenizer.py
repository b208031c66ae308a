"""A Hugging Face tokenizer: ``tokenizer.json``, run by the library ``tokenizers``.

Adds two features that the library lacks: it returns the bytes of a single token, and it can encode
text without parsing special tokens in it.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.support.encoding_work import count_ids, windows
from antiphon.support.installation import require_package

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
#: Characters that are encoded in a millisecond.
_SHORT_CHARS = 1000
_BLANK = "▁"  # SentencePiece's sign for a space


class _AddedToken(Struct):
    id: int
    content: str


class _Decoder(Struct):
    """The decoder in ``tokenizer.json``, which converts tokens to text. It is a single decoder or a
    sequence of decoders."""

    type: str = ""
    decoders: list[_Decoder] = []


class _TokenizerFile(Struct):
    """The fields of ``tokenizer.json`` that this module reads itself."""

    added_tokens: list[_AddedToken] = []
    decoder: _Decoder | None = None


class FastTokenizer:
    """A ``Tokenizer`` for the ``tokenizer.json`` at ``path``. Thread-safe.

    ``end_tokens``: ids or texts of the tokens that end a turn or a text. Unknown tokens are
    ignored. ``size``: number of ids of the model, which may exceed the number of ids in the file.
    Raises ``SetupError`` if the file cannot be read or this kind of tokenizer is not supported.
    """

    def __init__(self, path: Path, *, end_tokens: Iterable[int | str] = (), size: int = 0) -> None:
        require_package("tokenizers", "The package tokenizers", "upstream")
        try:
            self._source = path.read_bytes()
            self._text = self._source.decode()
            head = msgspec.json.decode(self._text, type=_TokenizerFile)
        except (OSError, ValueError) as error:
            raise SetupError(f"{path} cannot be read: {error}") from None
        self._library = _open(self._text, path)
        self._plain: Any = None
        self._plain_lock = threading.Lock()
        self.special = MappingProxyType(
            # Gemma adds runs of line feeds and spaces as tokens; they are plain text.
            {
                each.content: each.id
                for each in head.added_tokens
                if not _is_whitespace(each.content)
            }
        )
        self._special_pattern = _literal_pattern(self.special)
        #: Whether a word begins at a space between letters, in every text.
        self._has_windows = _begins_words(self._library) and not any(
            " " in literal.strip() for literal in self.special
        )
        self._to_bytes = _bytes_decoder(head.decoder, path)
        self._pieces = {each.id: each.content.encode() for each in head.added_tokens}
        self._special_ids = frozenset(self.special.values())
        highest = max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)
        self.size = max(highest + 1, size)
        self.end_ids = self._resolve_ids(end_tokens)

    @property
    def fingerprint(self) -> str:
        """A hash of the tokenizer file. Stored token ids are reused only if they come from a
        tokenizer with the same fingerprint."""
        return hashlib.sha256(self._source).hexdigest()[:32]

    @property
    def bos_id(self) -> int | None:
        """The BOS id that the tokenizer adds before every text, or None if it adds no BOS id."""
        bare = _ids(self._library, "a")
        whole: list[int] = self._library.encode("a", add_special_tokens=True).ids
        return whole[0] if whole[:1] != bare[:1] else None

    def id_of(self, literal: str) -> int | None:
        id: int | None = self._library.token_to_id(literal)
        return id

    def literal(self, token: int | None) -> str | None:
        """Return the text of a token, such as a special token. Return None if ``token`` is None or
        an unknown id."""
        return None if token is None else self.piece(token).decode("utf-8", "replace") or None

    def encode(self, text: str, *, special: bool) -> list[int]:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # replaces lone surrogates
        ids: list[int] = []
        for part in windows(text) if self._has_windows else (text,):
            made = self._encode(part, special=special)
            count_ids(len(made))
            ids += made
        return ids

    def _encode(self, text: str, *, special: bool) -> list[int]:
        library = self._library
        if not special and self._special_pattern.search(text):
            library = self._plain_library()
        ids = _ids(library, text)
        if special or self._special_ids.isdisjoint(ids):
            return ids
        return self._encode_split(text)

    def _plain_library(self) -> Any:
        """Return a copy of the tokenizer that encodes the texts of special tokens as ordinary text.

        The copy takes as much memory as the tokenizer, so it is created only when a text contains
        the text of a special token. The library can encode the text of a token as ordinary text
        only if the token is marked as special. So the copy marks all added tokens as special,
        except added tokens that stand for whitespace. The copy must still use the whitespace tokens
        to encode whitespace.
        """
        with self._plain_lock:
            if self._plain is None:
                parts = msgspec.json.decode(self._text, type=dict[str, msgspec.Raw])
                added = msgspec.json.decode(parts["added_tokens"])
                for each in added:
                    each["special"] = not _is_whitespace(each["content"])
                parts["added_tokens"] = msgspec.Raw(msgspec.json.encode(added))
                plain = _open(msgspec.json.encode(parts).decode())
                plain.encode_special_tokens = True
                self._plain = plain
        return self._plain

    def _encode_split(self, text: str) -> list[int]:
        """Encode a text that contains texts of special tokens, without using the special tokens.

        The text is split inside each text of a special token, and each piece is encoded on its own.
        This is for vocabularies in which the text of a special token is also an ordinary word.
        """
        ids: list[int] = []
        start = 0
        for match in (*self._special_pattern.finditer(text), None):
            cut = len(text) if match is None else match.start() + 1
            ids += _ids(self._plain_library(), text[start:cut])
            start = cut
        return ids

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            spelled = self._library.id_to_token(token) if 0 <= token < self.size else None
            piece = self._pieces[token] = b"" if spelled is None else self._to_bytes(spelled)
        return piece

    def _resolve_ids(self, end_tokens: Iterable[int | str]) -> frozenset[int]:
        ids = (self.id_of(end) if isinstance(end, str) else end for end in end_tokens)
        return frozenset(id for id in ids if id is not None and 0 <= id < self.size)


def _open(text: str, path: Path | None = None) -> Any:
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library has no exception class of its own
        raise SetupError(f"{path} is not a readable tokenizer: {error}") from None
    library.no_truncation()
    library.no_padding()
    return library


def _ids(library: Any, text: str) -> list[int]:
    """Encode a text. The method ``encode`` keeps the interpreter's lock, so each other thread would
    wait for a long text. The other method works on the library's threads, which have no turns."""
    if len(text) <= _SHORT_CHARS:
        short: list[int] = library.encode(text, add_special_tokens=False).ids
        return short
    (encoding,) = library.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _begins_words(library: Any) -> bool:
    """Whether the tokenizer works on bytes, and begins a word at a space between letters."""
    splitter = library.pre_tokenizer
    pieces = [] if splitter is None else splitter.pre_tokenize_str("a b")
    return pieces == [("a", (0, 1)), ("Ġb", (1, 3))]


def _is_whitespace(text: str) -> bool:
    return not text.replace(_BLANK, " ").strip()


def _literal_pattern(literals: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(literals, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


# --- bytes of vocabulary entries -----------------------------------------------------------------


def _bytes_decoder(decoder: _Decoder | None, path: Path) -> Callable[[str], bytes]:
    steps = [] if decoder is None else [decoder, *decoder.decoders]
    kinds = {step.type for step in steps} - {"Sequence"}
    if "ByteLevel" in kinds:
        return _ByteLevel().to_bytes
    if unknown := kinds - {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        raise SetupError(f"{path}: tokenizers of the kind {min(unknown)} are not supported.")
    return _sentence_piece_bytes if kinds else str.encode


def _sentence_piece_bytes(spelled: str) -> bytes:
    byte = _BYTE.fullmatch(spelled)
    return spelled.replace(_BLANK, " ").encode() if byte is None else bytes.fromhex(byte[1])


class _ByteLevel:
    """GPT-2's byte encoding: one printable character stands for each byte."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + index): byte for index, byte in enumerate(others)}

    def to_bytes(self, spelled: str) -> bytes:
        try:
            return bytes(self._bytes[char] for char in spelled)
        except KeyError:
            return spelled.encode()  # an added token, stored as plain text
