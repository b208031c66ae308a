"""The commands about models: ``models`` and ``pull``."""

from __future__ import annotations

import argparse

from antiphon.config.load import LoadedSettings

from .base import Command


def _pull_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="MODEL",
        help="model at Hugging Face: hf:owner/repo, hf:owner/repo/file.gguf or owner/repo:Q4_0",
    )


def _models_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=["list", "load", "unload", "pull", "suggest"],
        help="list: show the models of the running server or, if none runs, those in the settings"
        " (default); load, unload: load or unload a model of the running server; pull: download a"
        " model; suggest: list open models that call tools well, and which of them fit this"
        " machine",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="MODEL",
        help="name of a model; pull also accepts what antiphon pull accepts",
    )


def _models(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from ..models import run

    run(loaded, arguments.action, arguments.name)


def _pull(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from ..models import pull_here

    pull_here(arguments.source, loaded.settings)


MODELS = Command(
    help="List, load and unload the models of a running server, or download a model.",
    run=_models,
    groups=("Models",),
    flags=("port", "chat.url", "chat.key"),
    takes="[list|load|unload|pull|suggest] [MODEL] ",
    arguments=_models_arguments,
)

PULL = Command(
    help="Download a model to this machine.",
    run=_pull,
    groups=("Models",),
    takes="MODEL ",
    arguments=_pull_argument,
)
