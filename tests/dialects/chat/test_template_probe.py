"""What templates of the families take, as found by trying."""

from __future__ import annotations

import pytest

from antiphon.dialects.chat.template import CHATML, PLAIN, Template
from antiphon.dialects.chat.template_probe import TemplateCapabilities, probe
from antiphon.dialects.images import ImageMarkup
from antiphon.errors import SetupError
from tests.dialects.families import source as template_of

SILENT = TemplateCapabilities(
    content_parts=False,
    system=True,
    system_anywhere=True,
    developer=False,
    consecutive_roles=True,
    user_after_results=True,
    tools=False,
    results=False,
    argument_objects=False,
    argument_strings=False,
    parallel_calls=False,
    short_ids=False,
    named_ids=False,
    reasoning=None,
    end="",
)


def capabilities(**more: object) -> TemplateCapabilities:
    fields = {name: getattr(SILENT, name) for name in SILENT.__struct_fields__}
    return TemplateCapabilities(**{**fields, **more})


CALLS = {
    "tools": True,
    "results": True,
    "argument_objects": True,
    "argument_strings": True,
    "parallel_calls": True,
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, capabilities(end="<|im_end|>\n")),
        (PLAIN, capabilities(end="\n\n")),
        (template_of("smol"), capabilities(end="<|im_end|>\n")),
        (
            template_of("parts"),
            capabilities(content_parts=True, end="<|im_end|>\n", image=ImageMarkup("<image>")),
        ),
        (
            template_of("qwen"),
            capabilities(**CALLS, reasoning="reasoning_content", end="<|im_end|>\n"),
        ),
        (template_of("r1"), capabilities(end="<｜end▁of▁sentence｜>")),
        (
            template_of("llama"),
            capabilities(**{**CALLS, "parallel_calls": False}, end="<|eot_id|>"),
        ),
        (
            template_of("mistral"),
            capabilities(
                **CALLS,
                system_anywhere=False,
                consecutive_roles=False,
                user_after_results=False,
                short_ids=True,
                end="</s>",
            ),
        ),
        (
            template_of("gemma"),
            capabilities(
                system=False, system_anywhere=False, consecutive_roles=False, end="<end_of_turn>\n"
            ),
        ),
        (
            template_of("strict"),
            capabilities(
                **{**CALLS, "argument_strings": False},
                system_anywhere=False,
                reasoning="reasoning_content",
                end="<|im_end|>\n",
            ),
        ),
        (
            "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}"
            "{{ m.content }}{{ m.thinking }}{% endfor %}",
            capabilities(developer=True, reasoning="thinking"),
        ),
    ],
)
def test_capabilities_of_known_templates(source: str, expected: TemplateCapabilities) -> None:
    assert probe(Template(source, bos="<s>", eos="</s>")) == expected


@pytest.mark.parametrize("source", ["", "{{ raise_exception('never') }}", "{{ messages[0].role }}"])
def test_template_that_drops_the_question_is_refused(source: str) -> None:
    with pytest.raises(SetupError):
        probe(Template(source))


@pytest.mark.parametrize(
    ("body", "image"),
    [
        (
            "<|vision_start|><|image_pad|><|vision_end|>",
            ImageMarkup("<|vision_start|><|image_pad|><|vision_end|>"),
        ),
        ("{{ '\\n' }}<image> ", ImageMarkup("<image>", before="\n", after=" ")),
        ("", None),
    ],
)
def test_what_a_template_writes_for_an_image(body: str, image: ImageMarkup | None) -> None:
    source = (
        "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{% if p.type == 'image' %}" + body + "{% else %}{{ p.text }}"
        "{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    )
    assert probe(Template(source)).image == image


def test_template_without_parts_shows_no_images() -> None:
    assert probe(Template("{% for m in messages %}{{ m.content }}{% endfor %}")).image is None


def test_python_formatted_arguments_are_passed_as_strings() -> None:
    shown = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    shown += "{{ c.function.name }}{{ c.function.arguments | string }}{% endfor %}{% endfor %}"
    found = probe(Template(shown))
    assert found.results and found.argument_strings and not found.argument_objects


def test_template_may_iterate_over_missing_tools() -> None:
    """As those of Hermes 2 and 3 for tools do."""
    source = (
        "Tools: {% for tool in tools %}{{ tool.function.name }} {% endfor %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    found = probe(Template(source))
    assert found.no_tools == () and found.tools and not found.content_parts


def test_calls_at_the_end_may_be_left_out() -> None:
    """Nemotron's template takes an answer that stands last for one that is to be gone on with."""
    source = (
        "{% for m in messages %}{% if not (loop.last and m.role == 'assistant') %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
        "{% endfor %}{% endif %}{% endfor %}"
    )
    assert probe(Template(source)).results


@pytest.mark.parametrize(("shown", "unquoted_strings"), [("v", True), ("v | tojson", False)])
def test_strings_in_python_calls_may_be_shown_without_quotes(
    shown: str, unquoted_strings: bool
) -> None:
    """As by vLLM's templates for Llama 3.2."""
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}["
        "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}"
        "{{ k }}={{ " + shown + " }}{% endfor %})]{% endfor %}{% endfor %}"
    )
    assert probe(Template(source)).unquoted_strings is unquoted_strings


def test_required_reasoning_key_is_detected() -> None:
    """As with K2 Horizon."""
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.reasoning is not string %}"
        "{{ raise_exception('missing') }}{% endif %}{{ m.reasoning }}{{ m.content }}{% endfor %}"
    )
    found = probe(Template(source))
    assert found.requires_reasoning and found.reasoning == "reasoning" and found.consecutive_roles


def test_effort_values_of_a_template_are_detected() -> None:
    source = (
        "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'max'] %}"
        "{{ raise_exception('no') }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    assert probe(Template(source)).efforts == {"reasoning_effort": {"low", "max"}}
    assert probe(Template("{% for m in messages %}{{ m.content }}{% endfor %}")).efforts == {}
