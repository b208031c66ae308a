"""The commands that start or describe a server: ``serve``, ``settings``, ``doctor``, ``demo``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable

from msgspec.structs import replace
from rich.console import Console

from antiphon import __version__
from antiphon.config.keys import ApiKey
from antiphon.config.load import FILE, LoadedSettings, SettingsSources
from antiphon.config.mcp import McpServer
from antiphon.config.model import Model
from antiphon.config.options import Option, literal, options, setting_tables, setting_value
from antiphon.config.report import shown_value
from antiphon.config.settings import Settings
from antiphon.support.installation import antiphon_command
from antiphon.workers.setup import StartReport

from .base import Command, print_line


def _models_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="model to serve: a GGUF file, a folder with a GGUF file, a model at Hugging Face"
        " (hf:owner/repo or owner/repo:Q4_K_M), NAME=SOURCE, or the name of a model in the settings"
        " (default: all models in the settings, or a small model if they contain none)",
    )


def _serve(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from antiphon.bootstrap.access import page_is_served
    from antiphon.bootstrap.serve import serve, serve_with_workers
    from antiphon.http.server.serve import run as run_loop

    from ..doctor import summary
    from ..suggestion import propose_model, suggestion

    human = loaded.settings.log_format == "human"
    if human and (source := propose_model(loaded)) is not None:
        sources: SettingsSources = arguments.sources
        arguments.sources = replace(sources, flags={**sources.flags, "models": [source]})
        loaded = arguments.sources.load()
    hint = suggestion(loaded) if human else None
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def show_first_key(serving: StartReport) -> None:
        # Not in the log, which contains no secrets.
        if serving.first_key is not None:
            console.print(f"API key, shown only now: {serving.first_key}", style="bold")

    def announce(serving: StartReport) -> None:
        console.print(f"Antiphon {__version__} at {serving.url}/v1", style="bold")
        show_first_key(serving)
        for model in serving.models:
            size = f" · {model.context_size} tokens" if model.context_size else ""
            also = f" · also {', '.join(model.aliases)}" if model.aliases else ""
            console.print(f"  {model.name}{size}{also}")
        if hint is not None:
            console.print(f"  {hint}", style="dim")
        for line in summary(serving.capabilities):
            console.print(f"  {line}", style="dim")
        if page_is_served(loaded.settings):
            console.print(f"  In a browser: {serving.url}/")
        console.print(
            f"  Chat: {antiphon_command(_chat_arguments(loaded, serving.url))} · All settings:"
            f" {antiphon_command('settings')}",
            style="dim",
        )

    # A log in JSON contains the rest of the report.
    shown = announce if human else show_first_key
    if loaded.settings.workers > 1:
        run_loop(serve_with_workers(loaded, arguments.sources, shown))
        return
    run_loop(
        serve(
            loaded.settings,
            shown,
            origins=loaded.origins,
            sources=arguments.sources,
        )
    )


def _chat_arguments(loaded: LoadedSettings, url: str) -> str:
    """Return the arguments with which ``antiphon chat`` connects to the Antiphon server at ``url``.
    The server prints them when it starts, as a hint for the user.

    Without ``--url``, ``chat`` reads host and port from the default settings file and the
    environment. So the arguments contain ``--url`` if the server got its host or port from another
    source, such as a flag.
    """
    from antiphon.bootstrap.addresses import address

    settings, origins = loaded.settings, (loaded.origins["host"], loaded.origins["port"])
    is_found = all(each in ("default", FILE) or each.startswith("ANTIPHON_") for each in origins)
    if is_found and url == address(settings.host, settings.port):
        return "chat"
    return f"chat --url {url}"


def _settings(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    flat = [option for option in options(Settings).values() if option.table is None]
    _print_options(flat, loaded)
    for table in setting_tables(Settings):
        print_line(f"\n[{table}]")
        _print_options([o for o in options(Settings).values() if o.table == table], loaded)
    for name, model in loaded.settings.models.items():
        _table(f"[models.{literal(name)}]", model, loaded.origins["models"])
    for name, server in loaded.settings.mcp.servers.items():
        _table(f"[mcp.servers.{literal(name)}]", server, loaded.origins["mcp.servers"])
    for key in loaded.settings.keys:
        _table("[[keys]]", key, loaded.origins["keys"])


def _print_options(shown: Iterable[Option], loaded: LoadedSettings) -> None:
    for option in shown:
        value, key = setting_value(loaded.settings, option.name), option.name.rpartition(".")[2]
        if isinstance(value, dict) or key == "keys":
            continue
        is_set = value is not None
        line = f"{key} = {shown_value(option, value)}" if is_set else f"# {key} is not set"
        print_line(f"{line}  # {loaded.origins[option.name]}")


def _table(heading: str, table: Model | McpServer | ApiKey, origin: str) -> None:
    print_line(f"\n{heading}  # {origin}")
    for name, option in options(type(table)).items():
        value = getattr(table, name)
        if value is not None:
            print_line(f"{name} = {shown_value(option, value)}")


def _doctor(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from ..doctor import report

    for line in asyncio.run(report(loaded.settings)):
        print_line(line)


def _demo(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from antiphon.http.server.serve import run as run_loop

    from ..demo.command import run_demo

    def show(text: str) -> None:
        print_line(text)
        sys.stdout.flush()

    run_loop(run_demo(loaded.settings, show, once=arguments.once))


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="stop the server after the tour")


_SERVE_GROUPS = (
    "Server",
    "Models",
    "Storage",
    "Webhooks",
    "Access",
    "Limits",
    "Fetching",
    "Responses",
    "Tools",
)

SERVE = Command(
    help="Start a server that serves models.",
    run=_serve,
    groups=_SERVE_GROUPS,
    sets_model=True,
    takes="[MODEL …] ",
    arguments=_models_argument,
)

SETTINGS = Command(
    help="Show every setting and where its value comes from.",
    run=_settings,
    groups=(*_SERVE_GROUPS, "Chat"),
)

DOCTOR = Command(
    help="Show which models and tools work on this machine, and how to turn on the rest.",
    run=_doctor,
    groups=("Fetching", "Tools", "Models"),
)

DEMO = Command(
    help="Start a server whose model is a script, and show a tour of the API with real tools.",
    run=_demo,
    groups=("Server",),
    arguments=_demo_arguments,
)
