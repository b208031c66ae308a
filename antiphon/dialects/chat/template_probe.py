"""Find out what a chat template accepts and shows, by rendering small sample conversations once.

Templates do not declare their capabilities. Some raise an error, some silently drop messages, and
some require an order or a format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct

from antiphon.dialects.images import ImageMarkup
from antiphon.errors import SetupError

from .template import RenderError, Template

Message = Mapping[str, Any]

#: The length of a call id in Mistral's templates, which accept no other length. Such an id consists
#: of letters and digits only.
SHORT_ID = 9
#: Variables for the reasoning effort, and the values to try.
_EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_EFFORTS = ("none", "no_think", "minimal", "low", "medium", "high", "xhigh", "max")
#: Keys under which templates look for the reasoning of an answer.
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
#: Words for the samples. No template contains them, so they appear only if the sample is shown.
_FIRST, _SECOND, _ANSWER, _SYSTEM, _DEVELOPER = "Qwhiskey", "Qyankee", "Atango", "Ssierra", "Ddelta"
_TOOL, _TWIN, _VALUE, _RESULT, _THOUGHT = "oscar", "papa", "Vvictor", "Rromeo", "Troger"
_NAME_ID = f"functions.{_TOOL}:0"


class TemplateCapabilities(Struct, frozen=True, kw_only=True):
    """What one chat template supports. The module ``fallback`` rewrites the messages that the
    template does not support.

    - ``content_parts``: whether the content of a message must be a list of parts.
    - ``system``: whether there is a system role. ``system_anywhere``: whether a system message may
      also stand after the first message. ``developer``: whether there is a developer role.
    - ``consecutive_roles``: whether the template accepts both of these conversations: one in which
      two messages of the same role follow each other, and one that begins with an answer.
    - ``user_after_results``: whether a user message may directly follow tool results.
    - ``tools``: whether the prompt shows the tools. ``results``: whether the prompt shows calls and
      their results.
    - ``argument_objects``, ``argument_strings``: whether the arguments of a call may be an object,
      and whether they may be a string.
    - ``unquoted_strings``: whether the template writes strings in arguments without quotes,
      although the model's calls need quotes.
    - ``parallel_calls``: whether an answer may have several calls.
    - ``short_ids``: whether call ids must have ``SHORT_ID`` characters.
    - ``named_ids``: whether call ids must contain the tool's name, as in ``functions.NAME:0``,
      because the template shows the name nowhere else.
    - ``reasoning``: the key of an answer's reasoning, or None if the template never shows
      reasoning. ``requires_reasoning``: whether every answer must have this key.
    - ``end``: the text that the template writes after an answer.
    - ``no_tools``: the value of the template variable ``tools`` if there are no tools: None or an
      empty tuple. Some templates always iterate over this variable, so they need a tuple.
    - ``efforts``: name of a template variable for the reasoning effort → the values that the
      variable accepts.
    - ``image``: the text that the template writes for an image among the parts of a message, or
      None if it shows no images.
    """

    content_parts: bool
    system: bool
    system_anywhere: bool
    developer: bool
    consecutive_roles: bool
    user_after_results: bool
    tools: bool
    results: bool
    argument_objects: bool
    argument_strings: bool
    unquoted_strings: bool = False
    parallel_calls: bool
    short_ids: bool
    named_ids: bool
    reasoning: str | None
    requires_reasoning: bool = False
    end: str
    no_tools: tuple[()] | None = None
    efforts: Mapping[str, frozenset[str]] = {}
    image: ImageMarkup | None = None


def probe(template: Template) -> TemplateCapabilities:
    """Find out the capabilities of a template by rendering sample conversations. Raises
    ``SetupError`` if the template cannot show a user message."""
    samples = _Samples(template)
    user, second = _message("user", _FIRST), _message("user", _SECOND)
    answer = _message("assistant", _ANSWER)
    system, developer = _message("system", _SYSTEM), _message("developer", _DEVELOPER)
    forms = [form for form in _call_samples() if samples.shows_call(form)]
    objects = [form for form in forms if isinstance(_arguments(form), dict)]
    best = next(iter((*objects, *forms)), None)
    return TemplateCapabilities(
        content_parts=samples.content_parts,
        system=samples.shows([system, user], _SYSTEM, _FIRST),
        system_anywhere=samples.shows([user, answer, system, second], _FIRST, _SYSTEM, _SECOND),
        developer="developer" in template.source
        and samples.shows([developer, user], _DEVELOPER, _FIRST),
        consecutive_roles=samples.shows([user, second], _FIRST, _SECOND)
        and samples.shows([answer, user], _ANSWER, _FIRST),
        user_after_results=best is None or samples.shows([*best, second], _RESULT, _SECOND),
        tools=samples.shows([user], _TOOL, tools=[_tool()]),
        results=best is not None,
        argument_objects=bool(objects),
        argument_strings=len(forms) > len(objects),
        unquoted_strings=bool(objects) and samples.shows(objects[0], f"(city={_VALUE}"),
        parallel_calls=best is not None
        and samples.shows(_with_second_call(best), _TOOL, _TWIN, _RESULT),
        short_ids=best is not None and len(_id(best)) == SHORT_ID,
        named_ids=best is not None and _id(best) == _NAME_ID,
        reasoning=samples.reasoning_key(best or [user, answer]),
        requires_reasoning=bool(samples.required_reasoning_key),
        end=samples.end([user, answer]),
        no_tools=samples.no_tools,
        efforts=samples.efforts(),
        image=samples.image(),
    )


class _Samples:
    """Tests one template: renders sample conversations and finds out from the texts what the
    template supports."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.content_parts = False
        self.no_tools: tuple[()] | None = None
        self.required_reasoning_key = ""
        question = [_message("user", _FIRST)]
        for self.no_tools, self.content_parts in product((None, ()), (False, True)):
            if self.shows(question, _FIRST):
                break
        else:
            raise SetupError("The model's chat template does not show user messages.")
        answered = [*question, _message("assistant", _ANSWER)]
        for self.required_reasoning_key in ("", *_REASONING_KEYS):
            if self.shows(answered, _ANSWER):
                return
        self.required_reasoning_key = ""

    def shows(self, messages: Sequence[Message], *words: str, tools: object = None) -> bool:
        """Return whether the rendered ``messages`` contain all ``words``."""
        try:
            text = self._render(messages, tools, prompt=True)
        except RenderError:
            return False
        return all(word in text for word in words)

    def shows_call(self, form: Sequence[Message]) -> bool:
        """Return whether the template shows a tool call and its result. ``form``: a question, a
        call and its result, as messages.

        Returns False if the template prints the arguments as a Python dict, because a call needs
        JSON.
        """
        if not self.shows(form, _TOOL, _VALUE, _RESULT):
            return False
        if self.shows(form, repr({"city": _VALUE})):
            return False
        called = form[:2]  # the call itself must contain the name, not only the result
        # Some templates leave out a call at the end, because the model would continue the call.
        ends = (called, [*called, _message("user", _SECOND)])
        return any(self.shows(end, _TOOL, _VALUE) for end in ends) or not self.shows(called)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Any,
        *,
        prompt: bool,
        settings: Mapping[str, object] | None = None,
    ) -> str:
        if self.required_reasoning_key:
            messages = [
                {self.required_reasoning_key: "", **m} if m["role"] == "assistant" else m
                for m in messages
            ]
        if self.content_parts:
            messages = [
                {**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages
            ]
        tools = self.no_tools if tools is None else tools
        return self._template.render(messages, tools=tools, prompt=prompt, settings=settings)

    def reasoning_key(self, messages: Sequence[Message]) -> str | None:
        """Return the message key under which the template reads reasoning, or None if the template
        shows no reasoning.

        ``messages``: a question, an answer and the messages after it. Many templates show reasoning
        only in a tool loop, so the answer should be a call, and the call's result should follow.
        """
        user, answer, *rest = messages
        for key in _REASONING_KEYS:
            if self.shows([user, {**answer, key: _THOUGHT}, *rest], _THOUGHT):
                return key
        return None

    def efforts(self) -> dict[str, frozenset[str]]:
        """Return a mapping: name of a template variable for the reasoning effort → the values that
        the variable accepts."""
        variables = filter(self._template.mentions, _EFFORT_VARIABLES)
        return {
            name: frozenset(word for word in _EFFORTS if self._accepts_effort(name, word))
            for name in variables
        }

    def _accepts_effort(self, name: str, effort: str) -> bool:
        try:
            self._render([_message("user", _FIRST)], None, prompt=True, settings={name: effort})
        except RenderError:
            return False
        return True

    def image(self) -> ImageMarkup | None:
        """Return the placeholder that the template writes for an image, and the text that it writes
        before and after the placeholder. Returns None if the template does not support images."""
        parts = [_text(_FIRST), {"type": "image"}, _text(_SECOND)]
        try:
            text = self._template.render([{"role": "user", "content": parts}], tools=self.no_tools)
        except RenderError:
            return None
        before, found, rest = text.partition(_FIRST)
        shown, also, _ = rest.partition(_SECOND)
        word = shown.strip()
        # a template without support for parts may print the list itself
        if not (found and also and word) or "type" in before + shown:
            return None
        front, _, behind = shown.partition(word)
        return ImageMarkup(word, front, behind)

    def end(self, messages: Sequence[Message]) -> str:
        """Return the text that the template writes after the answer in ``messages``."""
        try:
            text = self._render(messages, None, prompt=False)
        except RenderError:
            return ""
        return text.partition(_ANSWER)[2]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool() -> dict[str, Any]:
    city = {"type": "string", "description": "Where."}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": _TOOL, "description": "Tells something.", "parameters": parameters}
    return {"type": "function", "function": function}


def _call_samples() -> list[list[dict[str, Any]]]:
    """Return sample conversations that consist of a question, a call and its result. There is one
    conversation for each way of writing a call that a template may require."""
    forms: list[list[dict[str, Any]]] = []
    for id in ("call_alpha", "a" * SHORT_ID, _NAME_ID):
        for arguments in ({"city": _VALUE}, f'{{"city": "{_VALUE}"}}'):
            function = {"name": _TOOL, "arguments": arguments}
            call = {"type": "function", "id": id, "function": function}
            forms.append(
                [
                    _message("user", _FIRST),
                    {**_message("assistant", ""), "tool_calls": [call]},
                    {**_message("tool", _RESULT), "tool_call_id": id, "name": _TOOL},
                ]
            )
    return forms


def _arguments(form: Sequence[Message]) -> Any:
    return form[1]["tool_calls"][0]["function"]["arguments"]


def _id(form: Sequence[Message]) -> str:
    return str(form[1]["tool_calls"][0]["id"])


def _with_second_call(form: Sequence[Message]) -> list[Message]:
    """Return the sample conversation ``form`` with a second call in its answer, and with the
    results of both calls."""
    user, answer, result = form
    (call,) = answer["tool_calls"]
    id = f"functions.{_TWIN}:1" if call["id"] == _NAME_ID else "b" + call["id"][1:]
    twin = {**call, "id": id, "function": {**call["function"], "name": _TWIN}}
    other = {**result, "tool_call_id": id, "name": _TWIN}
    return [user, {**answer, "tool_calls": [call, twin]}, result, other]
