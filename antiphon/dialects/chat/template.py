"""A chat template, rendered as ``transformers`` renders it.

Rendering is sandboxed: a template is code from a model's files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import CodeType
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.errors import SetupError

__all__ = ["CHATML", "PLAIN", "RESERVED", "RenderError", "Template"]

Messages = Sequence[Mapping[str, Any]]

#: The template of models that have ChatML's tokens but no template.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: The template of all other models without one.
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
#: Variables that every template gets; requests and settings must not set them.
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
)

_NOT_ASCII = re.compile("[^\x00-\x7f\U00100000-\U0010ffff]")


class RenderError(Exception):
    """The template rejects these messages. The message is the template's own reason."""


class _Generation(Extension):
    """The block ``{% generation %}``, which marks the model's text for training. It has no effect
    here.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize without the HTML escapes of jinja2's own filter.

    Private-use characters stay as they are: they stand for masked text.
    """
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        text = _NOT_ASCII.sub(lambda char: json.dumps(char.group())[1:-1], text)
    return text


def _raise(message: str) -> NoReturn:
    raise RenderError(message)


class _Environment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, without its checks for the variable ``loop``: templates read ``loop.first``
    for each message, and the checks took a quarter of the rendering."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is LoopContext and not attr.startswith("_"):
            return True
        return super().is_safe_attribute(obj, attr, value)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment


@lru_cache(maxsize=16)
def _compile(source: str) -> tuple[CodeType, frozenset[str]]:
    """Return the code of a template and the variables it uses. Cached, since models that are
    unloaded and loaded again have the same one."""
    environment = _environment()
    tree = environment.parse(source)
    variables = frozenset(meta.find_undeclared_variables(tree))
    return environment.compile(tree), variables


class Template:
    """The chat template of one model."""

    def __init__(
        self,
        source: str,
        *,
        bos: str | None = None,
        eos: str | None = None,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        try:
            code, self._variables = _compile(source)
        except TemplateError as error:
            raise SetupError(f"The model's chat template cannot be read: {error}") from None
        environment = _environment()
        environment.globals["strftime_now"] = lambda form: today().strftime(form)
        self._template = environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )
        self._fixed = {"bos_token": bos or "", "eos_token": eos or ""}
        self._today = today
        self.source = source

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """Render ``messages``; with ``prompt``, followed by the start of the model's turn.

        Raises ``RenderError``.
        """
        try:
            return self._template.render(
                {
                    "datetime": self._today().strftime("%b %d %Y"),
                    **self._tools_as(tools),
                    **self._fixed,
                    **(settings or {}),
                },
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
            )
        except RenderError:
            raise
        except SecurityError:
            raise RenderError("the template uses an operation that is not allowed") from None
        except Exception as error:  # a template may raise anything
            raise RenderError(f"{type(error).__name__}: {error}"[:200]) from None

    def _tools_as(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """Return the tools under the other variable names that templates read: ``functions`` (a
        JSON text, FireFunction) and ``xml_tools`` (SmolLM3)."""
        tool_forms = {"functions": _tojson(tools or [], indent=4), "xml_tools": tools}
        return {name: value for name, value in tool_forms.items() if self.mentions(name)}

    def mentions(self, name: str) -> bool:
        """Return whether the template reads a variable of this name."""
        return name in self._variables

    def quotes(self, word: str) -> bool:
        """Return whether the template contains this word as a string literal."""
        return f"'{word}'" in self.source or f'"{word}"' in self.source
