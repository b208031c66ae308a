"""The dialect of the imaginary model family Quill: ``dialect = "quill"``."""

from antiphon.dialects.base import Dialect, DialectOptions
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.errors import SetupError
from antiphon.tokens import ModelCard, Tokenizer

TEMPLATE = """\
{%- for message in messages %}[{{ message.role }}]
{{ message.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}[assistant]
{% endif %}"""


def create_dialect(card: ModelCard, tokenizer: Tokenizer, options: DialectOptions) -> Dialect:
    """Make the dialect of a model. The template of the model's own files is not used."""
    if options.template is not None:
        raise SetupError(f"{card.name}: the dialect quill has a template of its own")
    return ChatDialect(
        card,
        tokenizer,
        template=TEMPLATE,
        reasoning_format=options.reasoning_format,
        tool_format=options.tool_format,
        formats=options.formats,
        settings=options.template_kwargs,
        images=options.images,
        unreadable=options.unreadable,
    )
