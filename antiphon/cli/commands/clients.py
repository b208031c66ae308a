"""The commands that use a running server: ``chat`` and ``launch``."""

from __future__ import annotations

import argparse

from antiphon.config.load import LoadedSettings

from .base import Command


def _launch_arguments(parser: argparse.ArgumentParser) -> None:
    from ..launch import CLIENTS

    parser.add_argument(
        "--own-profile",
        action="store_true",
        help="use your own configuration of the agent, with its MCP servers and sessions;"
        " only the server and the model are Antiphon's",
    )
    parser.add_argument("client", choices=list(CLIENTS), help="the coding agent")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="…", help="arguments for the coding agent"
    )


def _chat(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from ..chat import chat
    from ..client import find_server

    chat(find_server(loaded), model=loaded.settings.chat.model)


def _launch(loaded: LoadedSettings, arguments: argparse.Namespace) -> int:
    from ..client import find_server
    from ..launch import launch

    model = loaded.settings.chat.model
    return launch(
        find_server(loaded),
        arguments.client,
        arguments.arguments,
        model=model,
        own_profile=arguments.own_profile,
    )


CHAT = Command(help="Chat with a running server.", run=_chat, groups=("Chat",), flags=("port",))

LAUNCH = Command(
    help="Start a coding agent that uses a running server, with a temporary configuration.",
    run=_launch,
    groups=("Chat",),
    flags=("port",),
    takes="codex|claude|opencode|pi [ARGUMENT …] ",
    arguments=_launch_arguments,
)
