"""What dialects and engines say to each other: prompts, chunks, constraints, the tokenizer.

Values only. It knows neither messages nor any engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

__all__ = [
    "Alternative",
    "Chunk",
    "Constraint",
    "Image",
    "ModelCard",
    "Prompt",
    "TokenLogprob",
    "Tokenizer",
    "common_prefix_length",
]


class Constraint(Struct, frozen=True):
    """What the continuation must obey, from its first token on: a grammar in llguidance's Lark.

    One language for all: a JSON schema is ``start: %json {…}``, a regex ``start: /…/``. Engines
    that do not speak it apply ``llguidance`` masks. Unless it is ``needed`` it only makes the reply
    better: engines without grammars leave it out. ``schema``: where JSON of this schema, and
    nothing else, is a way to obey: for engines that know schemas alone. ``partial``: more was asked
    for than a grammar can hold to, so that an answer that obeys is still to be judged.
    """

    lark: str
    needed: bool = True
    schema: Mapping[str, Any] | None = None
    partial: bool = False


class Image(Struct, frozen=True):
    """An image in a prompt: its encoded bytes, what they are (``image/png``), and the index of the
    prompt's ids before which it stands. ``word``: the ids from there on that a template writes for
    it; none where it stands apart from the text."""

    content: bytes
    mime: str
    at: int
    word: tuple[int, ...] = ()


class Prompt(Struct, frozen=True):
    """Token ids to continue, and the images between them, in order."""

    ids: tuple[int, ...]
    images: tuple[Image, ...] = ()


class Alternative(Struct, frozen=True):
    """One token that could have been sampled, with its natural log-probability."""

    id: int
    logprob: float


class TokenLogprob(Struct, frozen=True):
    """The sampled token's natural log-probability, and the best alternatives, best first."""

    id: int
    logprob: float
    top: tuple[Alternative, ...] = ()


class Chunk(Struct, frozen=True):
    """Newly sampled tokens. ``logprobs`` is empty or as long as ``ids``.

    ``finish`` is set in the last chunk only. ``cached_tokens`` (in any chunk) says how many prompt
    tokens were not computed again. ``stop_text``: the stop string that ended it, if one did.
    Where a stop string ended it, ``ids`` hold only tokens wholly before that string, and ``tail``
    the text of the last token that came before the string in the middle of a token.
    ``unreported_tokens``, in the last chunk: the number of sampled tokens whose ids the engine does
    not report, because the generation ended inside their character.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Literal["stop", "length"] | None = None
    cached_tokens: int | None = None
    stop_text: str | None = None
    tail: str = ""
    unreported_tokens: int = 0


class Tokenizer(Protocol):
    """Text to ids and back, for one model. Thread-safe."""

    @property
    def special(self) -> Mapping[str, int]:
        """Every control or added token that a text may not spell: literal → id."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a turn or a text (EOS, EOT …)."""

    @property
    def size(self) -> int:
        """Number of ids."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of ``text``, nothing added (no BOS). ``special``: literals of control tokens in the
        text become these tokens (templates); otherwise they are plain text (what users write)."""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; a special token's literal. Unknown ids: ``b""``."""


class ModelCard(Struct, frozen=True, kw_only=True):
    """What a model's files say about it."""

    name: str
    context_size: int
    chat_template: str | None = None
    #: Named templates of the tokenizer config beside the default one (``tool_use`` …).
    chat_templates: Mapping[str, str] = {}
    bos_token: str | None = None
    eos_token: str | None = None
    add_bos: bool = False
    architecture: str | None = None
    #: Changes when ids would mean something else: kept tokens are only reused under the same one.
    fingerprint: str = ""
    #: The model's own sampling defaults, where its files give any.
    generation: Mapping[str, Any] = {}


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids both sequences start with.

    A binary search over slice comparisons, which run in C. Only sequences of one type compare equal
    in Python, so ids of different types are copied first.
    """
    if type(one) is not type(other):
        one, other = tuple(one), tuple(other)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
