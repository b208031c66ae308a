"""Values that dialects and engines exchange, such as prompts, chunks and constraints. Also the
contract of a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

__all__ = [
    "Alternative",
    "Chunk",
    "Constraint",
    "EncodedImage",
    "ModelCard",
    "Prompt",
    "TokenLogprob",
    "Tokenizer",
    "common_prefix_length",
]


class Constraint(Struct, frozen=True):
    """A grammar that the output must match from its first token on. It is written in llguidance's
    variant of Lark.

    - ``lark``: the grammar. A JSON schema is written as ``start: %json {…}``, a regex as ``start:
      /…/``. Engines without a parser for this syntax apply the token masks that the library
      ``llguidance`` computes.
    - ``needed``: if true, an engine without grammar support must refuse the request; if false, it
      ignores the constraint.
    - ``schema``: a JSON schema for engines that support only schemas. Every JSON value that matches
      it also matches the grammar.
    - ``partial``: the request demands more than the grammar enforces, so the answer must still be
      validated.
    - ``free_text``: the answer may be any text; the grammar constrains only tool calls.
    """

    lark: str
    needed: bool = True
    schema: Mapping[str, Any] | None = None
    partial: bool = False
    free_text: bool = False


class EncodedImage(Struct, frozen=True):
    """An image in a prompt.

    ``content``: the encoded bytes of the image. ``mime``: media type, such as ``image/png``.
    ``position``: an index into the token ids of the prompt. The image is inserted before the token
    id with this index. ``placeholder_ids``: the token ids, from ``position`` on, that the template
    writes in place of the image; empty if it writes none.
    """

    content: bytes
    mime: str
    position: int
    placeholder_ids: tuple[int, ...] = ()


class Prompt(Struct, frozen=True):
    """The input of an engine: the token ids of the prompt, and the images between these ids, in
    order. The engine generates the tokens that follow. ``head``: how many of the first ids do not
    depend on the first user message, because they are instructions and tools; ``past``: the same
    for the last user message; 0 if it is unknown."""

    ids: tuple[int, ...]
    images: tuple[EncodedImage, ...] = ()
    head: int = 0
    past: int = 0

    def followed_by(self, ids: Iterable[int]) -> Prompt:
        """Return the prompt with further ids at its end, such as those that were sampled."""
        return replace(self, ids=(*self.ids, *ids))


class Alternative(Struct, frozen=True):
    """One of the most likely tokens at a position of the output, with its natural
    log-probability."""

    id: int
    logprob: float


class TokenLogprob(Struct, frozen=True):
    """The natural log-probability of a sampled token, and the most likely alternatives, best
    first."""

    id: int
    logprob: float
    top: tuple[Alternative, ...] = ()


class Chunk(Struct, frozen=True):
    """A part of an engine's output: newly sampled tokens.

    - ``logprobs``: empty, or as long as ``ids``.
    - ``finish``: why the output ended; set in the last chunk only.
    - ``cached_tokens``: number of prompt tokens taken from a cache. Any chunk may contain it.
    - ``stop_text``: the stop string that ended the output. In this case, ``ids`` has only the
      tokens that end before the stop string.
    - ``tail``: text between the last token of ``ids`` and the stop string, if the stop string
      begins in the middle of a token.
    - ``unreported_tokens``: in the last chunk, the number of sampled tokens whose ids the engine
      does not report, because the output ended in the middle of a character.
    - ``gives_way``: other tenants wait, and the engine cannot pause the generation, because it
      cannot start in the middle of a constraint. A reader that can continue the output with a
      request of its own shall end this one.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Literal["stop", "length"] | None = None
    cached_tokens: int | None = None
    stop_text: str | None = None
    tail: str = ""
    unreported_tokens: int = 0
    gives_way: bool = False


class Tokenizer(Protocol):
    """Converts between text and token ids of one model. Thread-safe."""

    @property
    def special(self) -> Mapping[str, int]:
        """Control tokens and added tokens: text of the token → id. Plain text must not produce
        these tokens."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a chat message or a text (EOS, EOT …)."""

    @property
    def size(self) -> int:
        """Number of token ids."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of ``text``, without BOS.

        ``special``: whether the text of a control token, such as ``<|im_end|>``, becomes this
        token. True for the text of templates. False for user input, in which it stays plain text.
        """

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token. For a special token, return its text, such as
        ``<|im_end|>``. For an unknown id, return ``b""``."""


class ModelCard(Struct, frozen=True, kw_only=True):
    """What engines and dialects need to know about a model, such as its context size, chat template
    and special tokens. These values are read from the model's files."""

    name: str
    context_size: int
    chat_template: str | None = None
    #: Named templates of the tokenizer config besides the default (``tool_use`` …).
    chat_templates: Mapping[str, str] = {}
    bos_token: str | None = None
    eos_token: str | None = None
    add_bos: bool = False
    architecture: str | None = None
    #: Identifies the tokenizer. Stored token ids are reused only if their fingerprint is the same.
    fingerprint: str = ""
    #: Sampling defaults from the model's files.
    generation: Mapping[str, Any] = {}


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids are the same at the start of both sequences.

    Uses a binary search over slice comparisons, which run in C. In Python, sequences of different
    types never compare equal, so such sequences are first copied to tuples.
    """
    if type(one) is not type(other):
        one, other = tuple(one), tuple(other)
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:  # most often, one extends the other
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
