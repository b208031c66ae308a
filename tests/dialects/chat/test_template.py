"""Templates are rendered as transformers renders them, and cannot do harm."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from antiphon.dialects.chat.template import RenderError, Template
from antiphon.errors import SetupError


def render(source: str, *messages: Any, **more: Any) -> str:
    template = Template(source, bos="<s>", eos="</s>", today=lambda: datetime(2026, 7, 9))
    return template.render(list(messages), **more)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  {% set a = 1 %}\nx{% endif %}", "x"),
        ("{{ bos_token }}-{{ eos_token }}-{{ pad_token }}", "<s>-</s>-"),
        ("{{ strftime_now('%d %b %Y') }}", "09 Jul 2026"),
        ("{% generation %}said{% endgeneration %}!", "said!"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'a': '<é\"&>'} | tojson }}", '{"a": "<é\\"&>"}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true) }}",
         '{"a": 1, "b": "\\u00e9"}'),
        ("{{ {'a': [1]} | tojson(separators=(',', ':')) }}", '{"a":[1]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ tools is none }} {{ documents is none }}", "True True"),
        ("{{ add_generation_prompt }}", "True"),
    ],
)  # fmt: skip
def test_template_functions_of_transformers_exist(source: str, text: str) -> None:
    assert render(source) == text


def test_tools_and_the_date_have_other_names() -> None:
    """FireFunction 2 asks for the text of its functions, SmolLM3 for tools called in XML."""
    tool = {"type": "function", "function": {"name": "f"}}
    assert render("{{ functions + datetime }}", tools=[tool]).endswith("}\n]Jul 09 2026")
    assert render("{{ functions }}") == "[]"
    assert render("{% for t in xml_tools %}{{ t.function.name }}{% endfor %}", tools=[tool]) == "f"
    assert render("{{ functions }}", settings={"functions": "none"}) == "none"


def test_settings_are_variables() -> None:
    source = "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}"
    assert render(source) == ""
    assert render(source, settings={"enable_thinking": False}) == "off"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[3]['content'] + 1 }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "not allowed"),
        ("{{ messages.append(1) }}", "not allowed"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_any_template_exception_is_a_refusal(source: str, reason: str) -> None:
    with pytest.raises(RenderError, match=reason):
        render(source, {"role": "user", "content": "a"})


def test_invalid_template_is_a_setup_error() -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        Template("{% for %}")


def test_template_variables_are_found() -> None:
    template = Template(
        "{% set mine = 1 %}{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
        "{{ mine }}{{ 'reasoning_effort' }}"
    )
    assert template.mentions("thinking")
    assert not template.mentions("mine")
    assert not template.mentions("reasoning_effort")
