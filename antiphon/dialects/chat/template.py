"""A chat template, rendered as ``transformers`` renders it.

Sandboxed: a template is code that came with a model's files. It knows no items.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.errors import SetupError

__all__ = ["CHATML", "PLAIN", "RESERVED", "Refused", "Template"]

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
#: What every template is given: nobody else may set it.
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
)

_NOT_ASCII = re.compile("[^\x00-\x7f\U00100000-\U0010ffff]")


class Refused(Exception):
    """The template does not take these messages; the text is its own reason."""


class _Generation(Extension):
    """``{% generation %}`` marks what a model wrote, for training; here it means nothing."""

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
    """Without the HTML escapes of jinja2's own filter. Private characters, which stand for what
    must stay text, are left as they are."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        text = _NOT_ASCII.sub(lambda char: json.dumps(char.group())[1:-1], text)
    return text


def _raise(message: str) -> NoReturn:
    raise Refused(message)


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
            self._variables = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise SetupError(f"The model's chat template cannot be read: {error}") from None
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
        """The text of ``messages``; ``prompt``: with the beginning of the model's turn. Raises
        ``Refused``."""
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
        except Refused:
            raise
        except SecurityError:
            raise Refused("it does what a template must not do") from None
        except Exception as error:  # a template is anybody's code
            raise Refused(f"{type(error).__name__}: {error}"[:200]) from None

    def _tools_as(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """The tools by other names: FireFunction is given a text, SmolLM3 knows two kinds."""
        said = {"functions": _tojson(tools or [], indent=4), "xml_tools": tools}
        return {name: value for name, value in said.items() if self.mentions(name)}

    def mentions(self, name: str) -> bool:
        """Whether the template asks for a variable of this name."""
        return name in self._variables

    def names(self, word: str) -> bool:
        """Whether this word stands in the template, quoted."""
        return f"'{word}'" in self.source or f'"{word}"' in self.source
