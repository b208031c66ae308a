"""What a chat template takes and shows, found out once by rendering small samples.

Templates do not say: some raise, some drop in silence, some demand an order or a form. It knows
templates and their messages; no items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct

from antiphon.dialects.images import Place
from antiphon.errors import SetupError

from .template import Refused, Template

__all__ = ["SHORT_ID", "TemplateCapabilities", "probe"]

Message = Mapping[str, Any]

#: The length of the ids that Mistral's templates insist on: letters and digits only.
SHORT_ID = 9
#: The variables that tell how much to think, and what they might be.
_SCALES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_EFFORTS = ("none", "no_think", "minimal", "low", "medium", "high", "xhigh", "max")
#: Keys under which templates look for what a model thought.
_THINKING = ("reasoning_content", "reasoning", "thinking")
#: What is said in the samples: words that no template has of its own.
_FIRST, _SECOND, _ANSWER, _SYSTEM, _DEVELOPER = "Qwhiskey", "Qyankee", "Atango", "Ssierra", "Ddelta"
_TOOL, _TWIN, _VALUE, _RESULT, _THOUGHT = "oscar", "papa", "Vvictor", "Rromeo", "Troger"
_NAMED_ID = f"functions.{_TOOL}:0"


class TemplateCapabilities(Struct, frozen=True, kw_only=True):
    """What is not taken as it is has to be said in another form."""

    #: Content is a list of parts.
    parts: bool
    #: There is a system role; it may also stand later than first; there is a developer role.
    system: bool
    system_anywhere: bool
    developer: bool
    #: Two messages of one role may follow each other, and an answer may come first.
    neighbours: bool
    #: The user may speak right behind results.
    user_after_results: bool
    #: Tools are shown.
    tools: bool
    #: Calls and results are shown.
    results: bool
    #: Arguments may be objects; they may be texts.
    objects: bool
    texts: bool
    #: Strings in arguments are shown without the quotes that Python calls need.
    unquoted: bool = False
    #: An answer may have several calls.
    parallel: bool
    #: Ids of calls have ``SHORT_ID`` characters.
    short_ids: bool
    #: Ids of calls hold the names, and nothing else does: ``functions.NAME:0``.
    named_ids: bool
    #: The key for an answer's thinking, if it is ever shown; and whether every answer must have it.
    reasoning: str | None
    thought: bool = False
    #: What is written behind an answer.
    end: str
    #: What it is given where there are no tools: some templates go over them without asking.
    no_tools: tuple[()] | None = None
    #: The variables in which it asks for an effort, and the words it takes.
    efforts: Mapping[str, frozenset[str]] = {}
    #: What is written for an image among the parts of a question; None: it is not shown.
    image: Place | None = None


def probe(template: Template) -> TemplateCapabilities:
    """Try the template. Raises ``SetupError`` if it cannot even show a question."""
    samples = _Samples(template)
    user, second = _said("user", _FIRST), _said("user", _SECOND)
    answer = _said("assistant", _ANSWER)
    system, developer = _said("system", _SYSTEM), _said("developer", _DEVELOPER)
    forms = [form for form in _calls() if samples.show_call(form)]
    objects = [form for form in forms if isinstance(_arguments(form), dict)]
    best = next(iter((*objects, *forms)), None)
    return TemplateCapabilities(
        parts=samples.parts,
        system=samples.show([system, user], _SYSTEM, _FIRST),
        system_anywhere=samples.show([user, answer, system, second], _FIRST, _SYSTEM, _SECOND),
        developer="developer" in template.source
        and samples.show([developer, user], _DEVELOPER, _FIRST),
        neighbours=samples.show([user, second], _FIRST, _SECOND)
        and samples.show([answer, user], _ANSWER, _FIRST),
        user_after_results=best is None or samples.show([*best, second], _RESULT, _SECOND),
        tools=samples.show([user], _TOOL, tools=[_tool()]),
        results=best is not None,
        objects=bool(objects),
        texts=len(forms) > len(objects),
        unquoted=bool(objects) and samples.show(objects[0], f"(city={_VALUE}"),
        parallel=best is not None and samples.show(_twice(best), _TOOL, _TWIN, _RESULT),
        short_ids=best is not None and len(_id(best)) == SHORT_ID,
        named_ids=best is not None and _id(best) == _NAMED_ID,
        reasoning=samples.thinking(best or [user, answer]),
        thought=bool(samples.thought),
        end=samples.end([user, answer]),
        no_tools=samples.no_tools,
        efforts=samples.efforts(),
        image=samples.image(),
    )


class _Samples:
    """Renderings of small conversations."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.parts = False
        self.no_tools: tuple[()] | None = None
        self.thought = ""
        question = [_said("user", _FIRST)]
        for self.no_tools, self.parts in product((None, ()), (False, True)):
            if self.show(question, _FIRST):
                break
        else:
            raise SetupError("The model's chat template does not show what a user says.")
        answered = [*question, _said("assistant", _ANSWER)]
        for self.thought in ("", *_THINKING):
            if self.show(answered, _ANSWER):
                return
        self.thought = ""

    def show(self, messages: Sequence[Message], *words: str, tools: Any = None) -> bool:
        """Whether all ``words`` come out."""
        try:
            text = self._render(messages, tools, prompt=True)
        except Refused:
            return False
        return all(word in text for word in words)

    def show_call(self, form: Sequence[Message]) -> bool:
        """Whether a call and its result come out, and not as Python writes an object."""
        if not self.show(form, _TOOL, _VALUE, _RESULT):
            return False
        if self.show(form, repr({"city": _VALUE})):
            return False
        called = form[:2]  # the name must stand in the call, and not only with its result
        # A call at the end may be left out for what the model goes on with.
        ends = (called, [*called, _said("user", _SECOND)])
        return any(self.show(end, _TOOL, _VALUE) for end in ends) or not self.show(called)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Any,
        *,
        prompt: bool,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        if self.thought:
            messages = [
                {self.thought: "", **m} if m["role"] == "assistant" else m for m in messages
            ]
        if self.parts:
            messages = [
                {**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages
            ]
        tools = self.no_tools if tools is None else tools
        return self._template.render(messages, tools=tools, prompt=prompt, settings=settings)

    def thinking(self, messages: Sequence[Message]) -> str | None:
        """The key for thinking. Many templates show only that of the present tool loop."""
        user, answer, *rest = messages
        for key in _THINKING:
            if self.show([user, {**answer, key: _THOUGHT}, *rest], _THOUGHT):
                return key
        return None

    def efforts(self) -> dict[str, frozenset[str]]:
        asked = filter(self._template.mentions, _SCALES)
        return {
            name: frozenset(word for word in _EFFORTS if self._takes(name, word)) for name in asked
        }

    def _takes(self, name: str, effort: str) -> bool:
        try:
            self._render([_said("user", _FIRST)], None, prompt=True, settings={name: effort})
        except Refused:
            return False
        return True

    def image(self) -> Place | None:
        parts = [_text(_FIRST), {"type": "image"}, _text(_SECOND)]
        try:
            text = self._template.render([{"role": "user", "content": parts}], tools=self.no_tools)
        except Refused:
            return None
        before, found, rest = text.partition(_FIRST)
        shown, also, _ = rest.partition(_SECOND)
        word = shown.strip()
        # a template that knows no parts may write the list itself
        if not (found and also and word) or "type" in before + shown:
            return None
        front, _, behind = shown.partition(word)
        return Place(word, front, behind)

    def end(self, messages: Sequence[Message]) -> str:
        try:
            text = self._render(messages, None, prompt=False)
        except Refused:
            return ""
        return text.partition(_ANSWER)[2]


def _said(role: str, text: str) -> dict[str, Any]:
    """A message."""
    return {"role": role, "content": text}


def _text(text: str) -> dict[str, Any]:
    """A part."""
    return {"type": "text", "text": text}


def _tool() -> dict[str, Any]:
    city = {"type": "string", "description": "Where."}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": _TOOL, "description": "Tells something.", "parameters": parameters}
    return {"type": "function", "function": function}


def _calls() -> list[list[dict[str, Any]]]:
    """A question, a call and its result, in every form that a template might want it in."""
    forms: list[list[dict[str, Any]]] = []
    for id in ("call_alpha", "a" * SHORT_ID, _NAMED_ID):
        for arguments in ({"city": _VALUE}, f'{{"city": "{_VALUE}"}}'):
            function = {"name": _TOOL, "arguments": arguments}
            call = {"type": "function", "id": id, "function": function}
            forms.append(
                [
                    _said("user", _FIRST),
                    {**_said("assistant", ""), "tool_calls": [call]},
                    {**_said("tool", _RESULT), "tool_call_id": id, "name": _TOOL},
                ]
            )
    return forms


def _arguments(form: Sequence[Message]) -> Any:
    return form[1]["tool_calls"][0]["function"]["arguments"]


def _id(form: Sequence[Message]) -> str:
    return str(form[1]["tool_calls"][0]["id"])


def _twice(form: Sequence[Message]) -> list[Message]:
    """The same with two calls in one answer."""
    user, answer, result = form
    (call,) = answer["tool_calls"]
    id = f"functions.{_TWIN}:1" if call["id"] == _NAMED_ID else "b" + call["id"][1:]
    twin = {**call, "id": id, "function": {**call["function"], "name": _TWIN}}
    other = {**result, "tool_call_id": id, "name": _TWIN}
    return [user, {**answer, "tool_calls": [call, twin]}, result, other]
