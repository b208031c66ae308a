"""The scripted models of the goldens: chat templates as published, harmony, and a scripted engine.

A ``|`` in a story separates chunks.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from functools import cache

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.dialects.harmony.dialect import HarmonyDialect
from antiphon.engines.base import Capabilities, Sampling
from antiphon.errors import BackendError
from antiphon.inference.tokens import Alternative, Chunk, ModelCard, Prompt, Tokenizer, TokenLogprob
from antiphon.testing.tokenizer import END, ByteTokenizer
from tests.dialects import gpt_oss
from tests.real.harmony import HarmonyTokenizer

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>{% for t in tools %}\n{{ t | tojson }}"
    '{% endfor %}\n</tools>\nWrite <tool_call>{"name": …, "arguments": …}</tool_call><|end|>\n'
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Name in a story → (template, special tokens, reasoning format, tool format).
MODELS: dict[str, tuple[str, tuple[str, ...], str | None, str | None]] = {
    "chatml": (_CHATML, ("<|im_start|>",), "", ""),
    "qwen": (_QWEN, ("<|im_start|>",), None, None),
    "thinking": (
        _QWEN.replace(
            "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
        ),
        ("<|im_start|>", "<think>", "</think>"),
        None,
        None,
    ),
    "coder": (_QWEN, ("<|im_start|>",), "think", "qwen3_coder"),
    "mistral": (_QWEN, ("<|im_start|>", "[TOOL_CALLS]"), "", "mistral"),
    "llama": (_QWEN, ("<|im_start|>",), "", "llama3_json"),
    "kimi": (
        _QWEN,
        (
            "<|im_start|>",
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        "",
        "kimi_k2",
    ),
}
_CONTROL = re.compile(r"(<\|[a-z]+\|>)")


class ChunkPlayer:
    """``Engine`` that plays chunks of text, one turn per call. The last turn repeats.

    A chunk ``!words`` fails with these words.
    """

    def __init__(
        self,
        turns: Sequence[Sequence[str]],
        tokenizer: Tokenizer,
        template: str = "",
        end: str = END,
    ) -> None:
        self.tokenizer = tokenizer
        self._end = tokenizer.special[end]
        self.card = ModelCard(
            name="scripted", context_size=4096, chat_template=template, fingerprint="bytes"
        )
        self.capabilities = Capabilities(max_logprobs=5, constraints=True, seed=True)
        self._turns = list(turns)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        left = sampling.max_tokens
        yield Chunk(cached_tokens=0)
        chunks = self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]
        for text in chunks:
            if text.startswith("!"):
                raise BackendError(text[1:])
            ids = self.tokenizer.encode(text, special=True)[:left]
            left -= len(ids)
            yield self._chunk(ids, sampling, finished=left == 0)
            if left == 0:
                return
        yield self._chunk([self._end], sampling, finished=False, stop=True)

    def _chunk(
        self, ids: list[int], sampling: Sampling, *, finished: bool, stop: bool = False
    ) -> Chunk:
        logprobs: tuple[TokenLogprob, ...] = ()
        if sampling.logprobs is not None:
            top = tuple(Alternative(65 + n, -1.0 - n) for n in range(sampling.logprobs))
            logprobs = tuple(TokenLogprob(token, -0.5, top) for token in ids)
        finish = "stop" if stop else "length" if finished else None
        return Chunk(ids=tuple(ids), logprobs=logprobs, finish=finish)  # type: ignore[arg-type]

    async def close(self) -> None: ...


class CharacterTokenizer(HarmonyTokenizer):
    """Encodes one token per character, so that cuts between characters are cuts between tokens."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        pieces = _CONTROL.split(text) if special else [text]
        return [
            id
            for piece in pieces
            for part in ([piece] if piece in self.special else piece)
            for id in super(CharacterTokenizer, self).encode(part, special=special)
        ]


def backend(model: str, turns: Sequence[Sequence[str]]) -> LocalBackend:
    """Return the model of a story, which will write these turns."""
    if model == "harmony":
        engine = ChunkPlayer(turns, _character_tokenizer(), end="<|return|>")
        return LocalBackend(engine, _harmony_dialect())
    template, special, *_ = MODELS[model]
    return LocalBackend(ChunkPlayer(turns, ByteTokenizer(special), template), _dialect(model))


@cache
def _harmony_dialect() -> HarmonyDialect:
    return gpt_oss.dialect(today=_today)


@cache
def _character_tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer(gpt_oss.encoding())


@cache
def _dialect(model: str) -> ChatDialect:
    """Return the dialect of a model, which is created once: that takes most of a story's time."""
    template, special, reasoning, tools = MODELS[model]
    engine = ChunkPlayer((), ByteTokenizer(special), template)
    return ChatDialect(
        engine.card,
        engine.tokenizer,
        reasoning_format=reasoning,
        tool_format=tools,
        today=_today,
    )


def _today() -> datetime:
    return datetime(2026, 1, 1)
