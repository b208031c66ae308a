"""Guard models: models that judge texts, and some also images. ``GUARDS`` has a row for each form
in which such models are asked and answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Backend, read_text
from antiphon.errors import BackendError, InvalidRequest, RequestError
from antiphon.inference.conversation import Conversation, Options
from antiphon.wire.items import InputImage, InputText, Message, OutputText
from antiphon.wire.moderation import Verdict, verdict
from antiphon.wire.response import ReasoningConfig

#: Enough for the names of all categories.
_MAX_TOKENS = 128

#: The categories of Llama Guard 3 and 4 → ours. Those without a counterpart have their own names.
_LLAMA_GUARD: Mapping[str, tuple[str, ...]] = {
    "S1": ("violence", "illicit/violent"),
    "S2": ("illicit",),
    "S3": ("sexual",),
    "S4": ("sexual", "sexual/minors"),
    "S5": ("defamation",),
    "S6": ("specialized-advice",),
    "S7": ("privacy",),
    "S8": ("intellectual-property",),
    "S9": ("illicit/violent",),
    "S10": ("hate",),
    "S11": ("self-harm",),
    "S12": ("sexual",),
    "S13": ("elections",),
    "S14": ("illicit",),
}
#: The categories of Qwen3Guard, in lower case → ours.
_QWEN_GUARD: Mapping[str, tuple[str, ...]] = {
    "violent": ("violence",),
    "non-violent illegal acts": ("illicit",),
    "sexual content or sexual acts": ("sexual",),
    "pii": ("privacy",),
    "personally identifiable information": ("privacy",),
    "suicide & self-harm": ("self-harm",),
    "unethical acts": ("harassment",),
    "politically sensitive topics": ("politics",),
    "copyright violation": ("intellectual-property",),
    "jailbreak": ("jailbreak",),
}
_SHIELD_GUIDELINES: Mapping[str, str] = {
    "illicit": (
        '"No Dangerous Content": The prompt shall not contain or seek generation of content that'
        " harms oneself and/or others (e.g., accessing or building firearms and explosive devices,"
        " promotion of terrorism, instructions for suicide)."
    ),
    "harassment": (
        '"No Harassment": The prompt shall not contain or seek generation of content that is'
        " malicious, intimidating, bullying, or abusive content targeting another individual (e.g.,"
        " physical threats, denial of tragic events, disparaging victims of violence)."
    ),
    "hate": (
        '"No Hate Speech": The prompt shall not contain or seek generation of content that targets'
        " identity and/or protected attributes (e.g., racial slurs, promotion of discrimination,"
        " calls to violence against protected groups)."
    ),
    "sexual": (
        '"No Sexually Explicit Information": The prompt shall not contain or seek generation of'
        " content that references sexual acts, or other lewd content (e.g., sexually graphic"
        " descriptions, content aimed at causing arousal)."
    ),
}
_GRANITE_RISKS: Mapping[str, str] = {
    "illicit": "harm",
    "violence": "violence",
    "sexual": "sexual_content",
    "hate": "social_bias",
    "harassment": "profanity",
}
_WORD = re.compile(r"[a-z]+")


class Question(Struct, frozen=True, kw_only=True):
    """What a moderator judges: the input of a user, or the ``answer`` of a model to it. ``tenant``,
    ``cache_scope``: model calls get these two values as the options with the same names."""

    parts: tuple[InputText | InputImage, ...]
    answer: str | None = None
    tenant: str = ""
    cache_scope: str | None = None

    @property
    def has_images(self) -> bool:
        return any(isinstance(part, InputImage) for part in self.parts)

    @property
    def text(self) -> str:
        """The texts of the input."""
        return "\n".join(part.text for part in self.parts if isinstance(part, InputText))

    @property
    def kinds(self) -> tuple[Literal["text", "image"], ...]:
        return ("text", "image") if self.has_images else ("text",)


class _Guard(Struct, frozen=True):
    """A form of guard models.

    - ``questions``: subject of a question → the variables of the chat template that ask it.
    - ``read``: returns the categories in an answer. Its arguments are the subject of the question
      and the answer. Raises ``ValueError`` for an answer in another form.
    """

    questions: Mapping[str, Mapping[str, Any]]
    read: Callable[[str, str], Iterable[str]]


def _read_llama_guard(subject: str, answer: str) -> Iterable[str]:
    first, _, codes = answer.strip().partition("\n")
    if first.strip().lower() not in ("safe", "unsafe"):
        raise ValueError(answer)
    if first.strip().lower() == "safe":
        return ()
    names = [code.strip() for code in codes.replace("\n", ",").split(",") if code.strip()]
    return [name for code in names or ["unsafe"] for name in _LLAMA_GUARD.get(code, (code,))]


def _read_qwen_guard(subject: str, answer: str) -> Iterable[str]:
    fields = dict(re.findall(r"^(\w+): *(.*)$", answer, re.MULTILINE))
    if "Safety" not in fields:
        raise ValueError(answer)
    if fields["Safety"].strip().lower() == "safe":
        return ()
    names = [name.strip().lower() for name in fields.get("Categories", "").split(",")]
    known = [name for name in names if name not in ("", "none")]
    return [name for each in known or ["unsafe"] for name in _QWEN_GUARD.get(each, (each,))]


def _read_yes_or_no(subject: str, answer: str) -> Iterable[str]:
    words = _WORD.findall(answer.lower().replace("<score>", ""))
    if words[:1] not in (["yes"], ["no"]):
        raise ValueError(answer)
    return (subject,) if words[0] == "yes" else ()


#: Value of the setting ``models.NAME.moderation`` → the form of the model.
GUARDS: Mapping[str, _Guard] = {
    "llama_guard": _Guard({"": {}}, _read_llama_guard),
    "qwen_guard": _Guard({"": {}}, _read_qwen_guard),
    "shield_gemma": _Guard(
        {name: {"guideline": text} for name, text in _SHIELD_GUIDELINES.items()}, _read_yes_or_no
    ),
    "granite_guardian": _Guard(
        {name: {"guardian_config": {"risk_name": risk}} for name, risk in _GRANITE_RISKS.items()},
        _read_yes_or_no,
    ),
}


async def judge_with_model(backend: Backend, form: str, question: Question) -> Verdict:
    """Let a guard model judge. ``form``: a key of ``GUARDS``. Raises ``RunError``."""
    guard, found = GUARDS[form], list[str]()
    parts = question.parts if question.has_images else (InputText(text=question.text),)
    messages = [Message(id="", role="user", content=parts)]
    if (answer := question.answer) is not None:
        messages.append(Message(id="", role="assistant", content=(OutputText(text=answer),)))
    for subject, variables in guard.questions.items():
        options = Options(
            reasoning=ReasoningConfig(effort="none"),
            temperature=0.0,
            max_output_tokens=_MAX_TOKENS,
            template=variables,
            tenant=question.tenant,
            cache_scope=question.cache_scope,
        )
        try:
            text = await _answer(backend, Conversation(tuple(messages)), options)
            found += guard.read(subject, text)
        except ValueError:
            raise BackendError("The guard model gave no verdict.") from None
        except RequestError as error:
            raise BackendError(error.message) from None
    return verdict(found, question.kinds)


async def _answer(backend: Backend, conversation: Conversation, options: Options) -> str:
    try:
        reply = await backend.prepare(conversation, options)
    except InvalidRequest:  # it cannot turn off the reasoning that it does not do
        reply = await backend.prepare(conversation, replace(options, reasoning=None))
    text, _ = await read_text(reply)
    return text
