"""Antiphon: the OpenAI Responses API for the models you run yourself.

This module is the public API for Python programs that embed a server. Its names are imported on
first use, so that ``import antiphon`` itself stays cheap.
"""

from __future__ import annotations

from importlib import import_module

#: Type checkers treat this name like ``typing.TYPE_CHECKING``. ``typing`` is not imported because
#: that is slow, and Ctrl-C prints a traceback until ``__main__`` is imported.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from antiphon.backends.base import Backend, Reply
    from antiphon.bootstrap.app import App, open_app
    from antiphon.bootstrap.serve import serve
    from antiphon.config.load import load_settings
    from antiphon.config.settings import Settings
    from antiphon.dialects.base import Dialect, Parser
    from antiphon.embeddings.base import Embedder
    from antiphon.engines.base import Engine
    from antiphon.errors import (
        AntiphonError,
        BackendError,
        CannotContinue,
        Conflict,
        Forbidden,
        GrammarError,
        InvalidRequest,
        NotFound,
        Overloaded,
        QuotaExceeded,
        RequestError,
        RunError,
        SetupError,
        Timeout,
        TooLarge,
        ToolError,
        Unauthorized,
    )
    from antiphon.http.app import create_app
    from antiphon.models.factories import local_backend
    from antiphon.runs.service import Service
    from antiphon.sandbox.base import Box, Sandbox
    from antiphon.store.base import Store
    from antiphon.tools.base import ToolProvider

__all__ = [
    "AntiphonError",
    "App",
    "Backend",
    "BackendError",
    "Box",
    "CannotContinue",
    "Conflict",
    "Dialect",
    "Embedder",
    "Engine",
    "Forbidden",
    "GrammarError",
    "InvalidRequest",
    "NotFound",
    "Overloaded",
    "Parser",
    "QuotaExceeded",
    "Reply",
    "RequestError",
    "RunError",
    "Sandbox",
    "Service",
    "Settings",
    "SetupError",
    "Store",
    "Timeout",
    "TooLarge",
    "ToolError",
    "ToolProvider",
    "Unauthorized",
    "__version__",
    "create_app",
    "load_settings",
    "local_backend",
    "open_app",
    "serve",
]

__version__ = "0.1.0"

#: Module → the public names it defines.
_MODULES = {
    "backends.base": ("Backend", "Reply"),
    "bootstrap.app": ("App", "open_app"),
    "bootstrap.serve": ("serve",),
    "config.load": ("load_settings",),
    "config.settings": ("Settings",),
    "dialects.base": ("Dialect", "Parser"),
    "embeddings.base": ("Embedder",),
    "engines.base": ("Engine",),
    "errors": (
        "AntiphonError",
        "BackendError",
        "CannotContinue",
        "Conflict",
        "Forbidden",
        "GrammarError",
        "InvalidRequest",
        "NotFound",
        "Overloaded",
        "QuotaExceeded",
        "RequestError",
        "RunError",
        "SetupError",
        "Timeout",
        "TooLarge",
        "ToolError",
        "Unauthorized",
    ),
    "http.app": ("create_app",),
    "models.factories": ("local_backend",),
    "runs.service": ("Service",),
    "sandbox.base": ("Box", "Sandbox"),
    "store.base": ("Store",),
    "tools.base": ("ToolProvider",),
}
_ORIGINS = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_ORIGINS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
