"""Render a model's chat template in the same way as the library ``transformers`` does.

A template is code from a model's files, so it runs in a sandbox.
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

Messages = Sequence[Mapping[str, Any]]

#: The template for models that have ChatML's special tokens but no template of their own.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: The template for all other models that have no template of their own.
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
#: Variables that every template gets. Requests and settings must not set them.
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
)

_NOT_ASCII = re.compile("[^\x00-\x7f\U00100000-\U0010ffff]")


class RenderError(Exception):
    """A chat template could not be rendered, for example because it rejects the messages. The
    exception's text is the reason."""


class _Generation(Extension):
    """Jinja extension for the block ``{% generation %}``. The block marks the model's text for
    training, and has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize a value to JSON, without the HTML escapes of jinja2's own filter ``tojson``.

    Private-use characters are never escaped, because they stand for control tokens that users
    wrote.
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
    """jinja2's sandbox, with two changes:

    - It does not check the variable ``loop``. Templates read ``loop.first`` for each message, and
      the checks took a quarter of the rendering time.
    - It does not rewrite the traceback of an error in a template. The rewritten traceback is a
      reference cycle that contains the frames of the callers, and so keeps an unloaded model.
    """

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if type(obj) is LoopContext and not attr.startswith("_"):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        if source is None:
            raise  # the error that jinja2 is handling
        super().handle_exception(source)


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
    """Compile a template. Returns its compiled code and the names of the variables that it reads.

    The result is cached, so that a template is not compiled again if its model is unloaded and
    loaded again.
    """
    environment = _environment()
    tree = environment.parse(source)
    variables = frozenset(meta.find_undeclared_variables(tree))
    return environment.compile(tree), variables


class Template:
    """The chat template of one model. ``source``: its text. ``bos``, ``eos``: the model's start and
    end tokens. ``today``: returns the current date."""

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
        tools: Sequence[Mapping[str, object]] | None = None,
        prompt: bool = True,
        settings: Mapping[str, object] | None = None,
    ) -> str:
        """Render ``messages`` as text. ``prompt``: whether the start of the model's turn is written
        after the messages.

        ``tools``: the definitions of the tools. ``settings``: variables for the template. Raises
        ``RenderError`` if the template rejects the messages.
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

    def _tools_as(self, tools: Sequence[Mapping[str, object]] | None) -> dict[str, Any]:
        """Return the variables that contain the tools and that only some templates read. The
        variable ``functions`` contains the tools as JSON text (for FireFunction). The variable
        ``xml_tools`` contains the unchanged definitions (for SmolLM3). Variables that this template
        does not read are left out."""
        tool_forms = {"functions": _tojson(tools or [], indent=4), "xml_tools": tools}
        return {name: value for name, value in tool_forms.items() if self.mentions(name)}

    def mentions(self, name: str) -> bool:
        """Return whether the template reads a variable called ``name``."""
        return name in self._variables

    def quotes(self, word: str) -> bool:
        """Return whether the template contains ``word`` as a string literal."""
        return f"'{word}'" in self.source or f'"{word}"' in self.source
