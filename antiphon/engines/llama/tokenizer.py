"""llama.cpp's tokenizer for a GGUF file, called in this process without loading the weights.

The Python binding does not expose the vocabulary, but its shared library exports llama.cpp's C
functions. They are called through ``ctypes``. Two of these functions depend on the layout of a C
struct. Before use, the layout is checked: the struct's default values must be as expected.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from antiphon.errors import SetupError
from antiphon.support.encoding_work import WINDOW_CHARS, count_ids, windows
from antiphon.support.installation import needs_extra, needs_packages, require_package

from .long_words import split_long_words

BINDING = "xllamacpp"

# enum llama_token_attr, llama.h
UNKNOWN, CONTROL, USER_DEFINED, LSTRIP = 1 << 0, 1 << 3, 1 << 4, 1 << 7
ERROR_LEVEL = 4  # enum ggml_log_level, ggml.h
_IS_LINUX = sys.platform.startswith("linux")


class _ModelParams(ctypes.Structure):
    """The fields of the C struct ``llama_model_params`` up to ``use_extra_bufts``. Padding stands
    for the other fields.

    Because of the padding, this struct may be longer than llama.cpp's struct. This is harmless,
    because a large struct is passed by a hidden pointer or on the stack. So only the offsets of the
    fields named here must be right.
    """

    _fields_ = (
        ("devices", ctypes.c_void_p),
        ("tensor_buft_overrides", ctypes.c_void_p),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int),
        ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", ctypes.c_void_p),
        ("progress_callback", ctypes.c_void_p),
        ("progress_callback_user_data", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("vocab_only", ctypes.c_bool),
        ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool),
        ("rest", ctypes.c_ubyte * 421),
    )


_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

_pointer, _int, _bool = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
#: A kind of vocabulary, ``enum llama_vocab_type``.
_BPE = 2
_SIGNATURES: Mapping[str, tuple[Any, list[Any]]] = {
    "llama_log_set": (None, [_Log, _pointer]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (_ModelParams, []),
    "llama_model_load_from_file": (_pointer, [ctypes.c_char_p, _ModelParams]),
    "llama_model_get_vocab": (_pointer, [_pointer]),
    "llama_model_free": (None, [_pointer]),
    "llama_vocab_n_tokens": (_int, [_pointer]),
    "llama_vocab_type": (ctypes.c_int, [_pointer]),
    "llama_vocab_get_attr": (ctypes.c_int, [_pointer, _int]),
    "llama_vocab_is_eog": (_bool, [_pointer, _int]),
    "llama_vocab_bos": (_int, [_pointer]),
    "llama_vocab_eos": (_int, [_pointer]),
    "llama_vocab_get_add_bos": (_bool, [_pointer]),
    "llama_tokenize": (_int, [_pointer, ctypes.c_char_p, _int, _pointer, _int, _bool, _bool]),
    "llama_token_to_piece": (_int, [_pointer, _int, ctypes.c_char_p, _int, _int, _bool]),
}


def require_llama() -> None:
    """Raise ``SetupError`` if llama.cpp's Python binding is not installed."""
    require_package(BINDING, "llama.cpp", "llama")


class _Library:
    """llama.cpp's C functions, as the extension module of llama.cpp's Python binding exports
    them."""

    def __init__(self) -> None:
        self.loading = threading.Lock()
        self.errors: list[str] = []
        #: Keeps the callback alive: the library calls it until the process ends.
        self.log = _Log(self.on_log)
        #: Gives freed memory back to the system; None if the C library has no such function.
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if _IS_LINUX else None
        shared = ctypes.CDLL(library_path())
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(shared, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("llama_"), function)
        self.log_set(self.log, None)
        self.backend_init()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def on_log(self, level: int, text: bytes, _: int | None) -> None:
        if level == ERROR_LEVEL:
            self.errors.append(text.decode("utf-8", "replace").strip())

    def open(self, path: Path) -> int:
        """Load the model at ``path`` without its weights. Return its C pointer. The caller must
        pass it to ``close``."""
        params = self.model_default_params()
        if (params.n_gpu_layers, params.split_mode, params.use_extra_bufts) != (-1, 1, True):
            version = importlib.metadata.version(BINDING)
            raise SetupError(
                needs_extra(f"This version of {BINDING} ({version}) is not supported", "llama")
            )
        params.vocab_only = True
        with self.loading:
            self.errors.clear()
            self.log_set(self.log, None)
            model: int | None = self.model_load_from_file(str(path).encode(), params)
            reason = next((line for line in self.errors if "error loading model" in line), "")
        if not model:
            reason = reason.rpartition("error loading model: ")[2] or "llama.cpp gives no reason"
            raise SetupError(f"llama.cpp cannot load {path}: {reason}.")
        return model

    def close(self, model: int) -> None:
        """Free a model and its memory. The C library itself would keep the memory for each thread
        that has loaded a model."""
        self.model_free(model)
        if self.trim is not None:
            self.trim(0)


@functools.cache
def _library() -> _Library:
    """Return llama.cpp's C functions. They are loaded once per process."""
    return _Library()


def library_path() -> str:
    """Return the path of the shared library of llama.cpp's Python binding. Raises ``SetupError`` if
    it is missing."""
    with needs_packages("llama.cpp is not installed", "llama"):
        import xllamacpp.xllamacpp as extension
    return str(extension.__file__)


class LlamaTokenizer:
    """A ``Tokenizer`` that calls llama.cpp. Thread-safe.

    llama.cpp's copy of the vocabulary is freed when the object is garbage-collected. The
    constructor raises ``SetupError`` if llama.cpp cannot read the vocabulary of the file ``path``.
    """

    def __init__(self, path: Path) -> None:
        self._library = _library()
        model = self._library.open(path)
        weakref.finalize(self, self._library.close, model)
        self._vocabulary = self._library.model_get_vocab(model)
        #: BPE vocabularies split text into words by regular expressions first.
        self._splits_words = self._library.vocab_type(self._vocabulary) == _BPE
        self.size: int = self._library.vocab_n_tokens(self._vocabulary)
        self._pieces: dict[int, bytes] = {}
        self.special, self.end_ids, self._user_defined = self._look_up_special()
        self._has_windows = not any(" " in literal.strip() for literal in self.special)
        self._turn_ends = re.compile("|".join(map(re.escape, self._dividing())) or "(?!)")

    @property
    def bos(self) -> str | None:
        return self._literal(self._library.vocab_bos(self._vocabulary))

    @property
    def eos(self) -> str | None:
        return self._literal(self._library.vocab_eos(self._vocabulary))

    @property
    def add_bos(self) -> bool:
        """Whether the model expects a BOS token at the start of every prompt."""
        return bool(self._library.vocab_get_add_bos(self._vocabulary))

    def encode(self, text: str, *, special: bool) -> list[int]:
        if special:
            return self._encode(text, special=True)
        ids: list[int] = []
        start = 0
        for literal in self._user_defined.finditer(text):
            # llama.cpp parses "user defined" tokens in any text (harmony's <|channel|> is one).
            # Splitting the text inside such a literal keeps it plain text.
            cut = literal.start() + 1
            ids += self._encode(text[start:cut], special=False)
            start = cut
        return ids + self._encode(text[start:], special=False)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        if not self._splits_words:
            return self._tokens(text, special)
        parts = split_long_words(text, self.special if special else {})
        if len(text) > WINDOW_CHARS:
            if special:
                parts = (
                    piece
                    for part in parts
                    for piece in split_at_turns(part, self._turn_ends, WINDOW_CHARS)
                )
            if self._has_windows:
                parts = (piece for part in parts for piece in windows(part))
        ids: list[int] = []
        for part in parts:
            made = self._tokens(part, special)
            count_ids(len(made))
            ids += made
        return ids

    def _tokens(self, text: str, special: bool) -> list[int]:
        spelled = text.encode("utf-8", "replace")
        capacity = len(spelled) + 8  # a token has at least a byte; some models prepend a space
        ids = (ctypes.c_int32 * capacity)()
        count = self._library.tokenize(
            self._vocabulary, spelled, len(spelled), ids, capacity, False, special
        )
        return ids[:count]

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._look_up(token)
        return piece

    def _look_up(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            return b""
        capacity = 64
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            length = self._library.token_to_piece(
                self._vocabulary, token, buffer, capacity, 0, True
            )
            if length >= 0:
                return buffer.raw[:length]
            capacity = -length

    def _literal(self, token: int) -> str | None:
        return self.piece(token).decode("utf-8", "replace") if token >= 0 else None

    def _dividing(self) -> Iterator[str]:
        """Yield the texts of certain end tokens. If a text is split directly before such an end
        token and the pieces are tokenized separately, the token ids are the same as those of the
        whole text.

        Two kinds of end tokens are left out, because the ids could differ:

        - End tokens whose text is part of another special token. The split could cut the other
          token.
        - End tokens that absorb the white space before them. After the split, the white space would
          be tokenized separately.
        """
        look_up, vocabulary = self._library.vocab_get_attr, self._vocabulary
        for literal, token in self.special.items():
            if token in self.end_ids and not look_up(vocabulary, token) & LSTRIP:
                if sum(literal in other for other in self.special) == 1:
                    yield literal

    def _look_up_special(self) -> tuple[Mapping[str, int], frozenset[int], re.Pattern[str]]:
        """Return the special tokens (text → id), the ids of the end tokens, and a pattern that
        matches the text of each "user defined" token."""
        special: dict[str, int] = {}
        ends, user_defined = set(), []
        look_up, vocabulary = self._library.vocab_get_attr, self._vocabulary
        for token in range(self.size):
            attributes = look_up(vocabulary, token)
            if not attributes & (CONTROL | USER_DEFINED | UNKNOWN):
                continue
            literal = self.piece(token).decode("utf-8", "replace")
            if literal.strip():  # Gemma's vocabulary declares runs of white space "user defined"
                special[literal] = token
                if attributes & USER_DEFINED and len(literal) > 1:
                    user_defined.append(literal)
            if self._library.vocab_is_eog(vocabulary, token):
                ends.add(token)
        longest_first = sorted(user_defined, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        return MappingProxyType(special), frozenset(ends), pattern


def split_at_turns(text: str, turn_ends: re.Pattern[str], size: int) -> Iterator[str]:
    """Yield the text in pieces, because llama.cpp is slow for long texts with special tokens.
    After each special token, llama.cpp searches the rest of the text for every other special
    token. So its work grows with the square of the text's length.

    ``turn_ends``: matches the end tokens. Each piece except the first begins with an end token.
    Each piece except the last has at least ``size`` characters.
    """
    start = 0
    for end in turn_ends.finditer(text):
        if end.start() - start >= size:
            yield text[start : end.start()]
            start = end.start()
    yield text[start:]
