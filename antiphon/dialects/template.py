"""A chat template, rendered as ``transformers`` renders it, and what it can and cannot say.

Sandboxed: a template is code that came with a model's files. It knows no items.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from antiphon.errors import SetupError

__all__ = ["CHATML", "PLAIN", "Refused", "Template", "Traits"]

Messages = Sequence[Mapping[str, Any]]

#: For models that have ChatML's tokens but no template of their own.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: For models without any.
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


class Refused(Exception):
    """The template does not take these messages; the text is its own reason."""


class _Generation(Extension):
    """``{% generation %}`` marks what a model wrote, for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    """Without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise Refused(message)


class Traits(Struct, frozen=True, kw_only=True):
    """What a template takes, found by trying. A role that is not taken is folded into another."""

    system: bool
    system_anywhere: bool
    developer: bool
    neighbours: bool
    tools: bool
    results: bool
    reasoning: bool


class Template:
    """One template of one model."""

    def __init__(
        self,
        source: str,
        *,
        bos: str | None = None,
        eos: str | None = None,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: today().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise SetupError(f"The model's chat template cannot be read: {error}") from None
        self._fixed = {"bos_token": bos or "", "eos_token": eos or ""}
        self.source = source

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of ``messages``; ``prompt``: with the beginning of the model's turn. Raises
        ``Refused``."""
        try:
            return self._template.render(
                **self._fixed,
                **(settings or {}),
                messages=messages,
                tools=tools or None,
                add_generation_prompt=prompt,
            )
        except Refused:
            raise
        except SecurityError:
            raise Refused("it does what a template must not do") from None
        except Exception as error:  # a template is anybody's code
            raise Refused(f"{type(error).__name__}: {error}"[:200]) from None

    def mentions(self, name: str) -> bool:
        """Whether the template's code speaks of ``name``."""
        return name in self.source

    def traits(self) -> Traits:
        """Try the template on small conversations; each marker must come out again."""
        user = {"role": "user", "content": "U7x"}
        answer = {"role": "assistant", "content": "A7x"}
        tool = {
            "type": "function",
            "function": {
                "name": "T7x",
                "description": "D7x",
                "parameters": {"type": "object", "properties": {}},
            },
        }
        call = {
            "type": "function",
            "id": "call00001",
            "function": {"name": "T7x", "arguments": {"k": "K7x"}},
        }
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {
            "role": "tool",
            "content": "R7x",
            "name": "T7x",
            "tool_call_id": "call00001",
        }
        system = {"role": "system", "content": "S7x"}
        return Traits(
            system=self._says(("S7x", "U7x"), [system, user]),
            system_anywhere=self._says(("S7x",), [user, answer, system, user]),
            developer=self.mentions("developer"),
            neighbours=self._says(("U7x",), [user, user]),
            tools=self._says(("T7x",), [user], [tool]),
            results=self._says(("T7x", "K7x", "R7x"), [user, calling, result], [tool]),
            reasoning=self.mentions("reasoning_content"),
        )

    def _says(
        self, marks: Sequence[str], messages: Messages, tools: Sequence[Any] | None = None
    ) -> bool:
        try:
            text = self.render(messages, tools=tools)
        except Refused:
            return False
        return all(mark in text for mark in marks)
