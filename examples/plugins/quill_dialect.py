"""The dialect of the imaginary model family Quill: ``dialect = "quill"``."""

from msgspec.structs import replace

from antiphon.dialects.base import Dialect, DialectOptions
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.errors import SetupError
from antiphon.inference.tokens import ModelCard, Tokenizer

TEMPLATE = """\
{%- for message in messages %}[{{ message.role }}]
{{ message.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}[assistant]
{% endif %}"""


def create_dialect(card: ModelCard, tokenizer: Tokenizer, options: DialectOptions) -> Dialect:
    """Make the dialect of a model. The template of the model's own files is not used."""
    if options.template is not None:
        raise SetupError(f"{card.name}: the dialect quill has a template of its own")
    return ChatDialect.from_options(card, tokenizer, replace(options, template=TEMPLATE))
