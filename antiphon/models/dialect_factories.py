"""Choose the dialect of a local model, and collect all formats. A dialect renders the prompts for a
model family and parses the output of its models. A format describes how a model writes tool calls
or reasoning.

Dialects and formats come from Antiphon or from installed packages. Formats also come from files of
the operator.

A package registers a dialect or formats as an entry point of the group ``antiphon.dialects``. See
``dialects.base.DialectPlugin``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from antiphon.config.load import environment_variable
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.dialects.base import Dialect, DialectOptions, DialectPlugin
from antiphon.dialects.formats.registry import SHIPPED, Formats
from antiphon.engines.base import Engine
from antiphon.errors import SetupError
from antiphon.support.plugins import load_plugin, load_plugins

_ENTRY_POINT_GROUP = "antiphon.dialects"
#: The architecture of gpt-oss in GGUF files and in Hugging Face configurations.
_GPT_OSS = ("gpt-oss", "gpt_oss")
#: Settings that apply only to the dialect ``chat``.
_TEMPLATE_OPTIONS = ("template", "reasoning_format", "tool_format")


def create_dialect(engine: Engine, name: str, model: Model, settings: Settings) -> Dialect:
    """Build the dialect of the local model ``[models.NAME]``. ``name`` is the model's ``NAME``.

    The setting ``dialect`` is ``chat``, ``harmony`` or the name of an entry point of the group
    ``antiphon.dialects``. If it is not set, gpt-oss models without the setting ``template`` get
    ``harmony``. All other models get ``chat``. Raises ``SetupError``.
    """
    is_gpt_oss = engine.card.architecture in _GPT_OSS and not model.template
    dialect = model.dialect or ("harmony" if is_gpt_oss else "chat")
    if dialect in DIALECTS:
        return DIALECTS[dialect](engine, name, model, settings)
    plugin: DialectPlugin = load_plugin(
        _ENTRY_POINT_GROUP,
        dialect,
        setting=f"model {name}: dialect",
        built_in=DIALECTS,
        is_valid=lambda plugin: not isinstance(plugin, Formats),
    )
    if isinstance(plugin, Formats):
        raise SetupError(
            f"model {name}: the entry point {dialect!r} provides formats, not a dialect;"
            " set reasoning_format or tool_format"
        )
    return plugin(engine.card, engine.tokenizer, _options(engine, model, settings))


def available_formats(settings: Settings) -> Formats:
    """Collect all definitions that the settings ``reasoning_format`` and ``tool_format`` can name.
    A format describes how a model marks its reasoning or writes tool calls.

    Formats in the operator's files come first, then formats of installed packages, then Antiphon's
    own formats. If several formats have the same name, the first format is used. Raises
    ``SetupError``.
    """
    formats = SHIPPED
    for added in _installed_formats():
        formats = added.extend(formats)
    if settings.formats_dir is None:
        return formats
    from .format_files import load as load_formats

    return load_formats(settings.formats_dir, formats)


def _installed_formats() -> Iterator[Formats]:
    for _, plugin in load_plugins(_ENTRY_POINT_GROUP):
        if isinstance(plugin, Formats):
            yield plugin


def _options(engine: Engine, model: Model, settings: Settings) -> DialectOptions:
    """Return the options for the dialect of a model. They come from the settings and from the
    engine."""
    return DialectOptions(
        template=read_template(model.template) if model.template else None,
        reasoning_format=model.reasoning_format,
        tool_format=model.tool_format,
        formats=available_formats(settings),
        template_kwargs=model.template_kwargs,
        images=engine.capabilities.images,
        unreadable=model.unsupported_modality,
    )


def _chat(engine: Engine, name: str, model: Model, settings: Settings) -> Dialect:
    from antiphon.dialects.chat.dialect import ChatDialect

    options = _options(engine, model, settings)
    return ChatDialect.from_options(engine.card, engine.tokenizer, options)


def _harmony(engine: Engine, name: str, model: Model, settings: Settings) -> Dialect:
    from antiphon.dialects.formats.registry import HARMONY_NAMES
    from antiphon.dialects.harmony.dialect import HarmonyDialect
    from antiphon.dialects.harmony.vocabulary import load as load_vocabulary

    for option in _TEMPLATE_OPTIONS:
        value = getattr(model, option)
        if value and (option == "template" or value.replace("-", "_") not in HARMONY_NAMES):
            raise SetupError(f"model {name}: the dialect harmony does not use {option}")
    cache = settings.cache_dir / "vocabulary"
    return HarmonyDialect(
        engine.card,
        engine.tokenizer,
        load_vocabulary(model.vocabulary, cache, environment_variable),
        settings=model.template_kwargs,
        unreadable=model.unsupported_modality,
    )


#: Value of the setting ``dialect`` → function that builds the dialect. Its arguments are those of
#: ``create_dialect``. Other packages add dialects as entry points of the group
#: ``antiphon.dialects``.
DIALECTS: Mapping[str, Callable[[Engine, str, Model, Settings], Dialect]] = {
    "chat": _chat,
    "harmony": _harmony,
}


def read_template(path: Path) -> str:
    """Read a chat template file. Raises ``SetupError``."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The template {path} cannot be read: {error}") from None
