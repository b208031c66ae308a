"""The command line: argument parser and commands.

Most flags are derived from the settings.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from antiphon import __version__
from antiphon.config.keys import ApiKey
from antiphon.config.load import FILE, LoadedSettings, SettingsSources
from antiphon.config.mcp import McpServer
from antiphon.config.model import Model
from antiphon.config.options import (
    Option,
    did_you_mean,
    flag_name,
    from_text,
    literal,
    options,
)
from antiphon.config.renamed_settings import RENAMED_SETTINGS
from antiphon.config.report import mask_secrets
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.support.installation import antiphon_command
from antiphon.workers.start_report import StartReport

from .foreign_flags import hint

__all__ = ["COMMANDS", "Command", "main"]


class Command(Struct, frozen=True, kw_only=True):
    """A subcommand of the command line ``antiphon``.

    - ``run`` runs the command and may return an exit code.
    - ``groups``: names of groups of settings. The command has a flag for each setting in these
      groups.
    - ``flags``: names of other settings for which the command has a flag.
    - ``sets_model``: whether the command also has flags for the settings of one model.
    - ``takes``: the positional arguments, as the usage line shows them.
    - ``arguments`` gets the command's parser, and adds the arguments that are not settings.
    """

    help: str
    run: Callable[[LoadedSettings, argparse.Namespace], int | None]
    groups: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    sets_model: bool = False
    takes: str = ""
    arguments: Callable[[argparse.ArgumentParser], Any] | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` defaults to the process's arguments.

    Returns the exit code: 2 for an error that the user can fix (one line on stderr), 130 after
    Ctrl-C, 0 for success.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(words)
    try:
        if words[:1] == ["serve"] and (foreign := hint(words)) is not None:
            raise SetupError(foreign)
        arguments, rest = parser.parse_known_args(words)
        if rest:
            raise SetupError(
                f"unknown argument {rest[0]}{did_you_mean(rest[0], _flags(arguments))}"
            )
        if arguments.command is None:
            parser.print_help()
            return 0
        known = options(Settings)
        given = vars(arguments)
        names = {*known, *RENAMED_SETTINGS}
        flags = {name: value for name, value in given.items() if name in names}
        model_flags = {
            name.removeprefix(_MODEL_PREFIX): value
            for name, value in given.items()
            if name.startswith(_MODEL_PREFIX)
        }
        arguments.sources = SettingsSources(
            flags=flags,
            model_flags=model_flags,
            file=None if arguments.config is None else str(arguments.config),
        )
        loaded = arguments.sources.load()
        if arguments.command != "serve":  # the server logs them
            for line in loaded.warnings:
                sys.stderr.write(f"antiphon: {line}\n")
        return COMMANDS[arguments.command].run(loaded, arguments) or 0
    except SetupError as error:
        sys.stderr.write(f"antiphon: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output closed it
        sys.stdout = open(os.devnull, "w")  # Python would report the closed pipe at exit
    return 0


# --- arguments -----------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors and without abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise SetupError(f"{message} ({self.prog} --help)")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for these arguments. Only commands whose names occur in ``words`` get their
    flags, because adding the flags of all commands is slow."""
    parser = _Parser(prog="antiphon", description="The OpenAI Responses API for your own models.")
    parser.add_argument("--version", action="version", version=f"antiphon {__version__}")
    parser.set_defaults(config=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=command.help,
            usage=f"antiphon {name} [--FLAG …] {command.takes}".rstrip(),
        )
        if command.arguments is not None:
            command.arguments(sub)
        sub.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="settings file (default: the file that ANTIPHON_CONFIG names, or antiphon.toml)",
        )
        if name in words:
            _add_flags(sub, command)
    return parser


def _add_flags(parser: argparse.ArgumentParser, command: Command) -> None:
    sections: dict[str, Any] = {}
    for option in _settings_flags(command):
        if option.group not in sections:
            sections[option.group] = parser.add_argument_group(option.group)
        _add_flag(sections[option.group], option)
        for earlier, current in RENAMED_SETTINGS.items():
            if current == option.name:
                _add_flag(
                    sections[option.group],
                    replace(option, name=earlier, flag=flag_name(earlier)),
                    is_hidden=True,
                )
    if command.sets_model:
        section = parser.add_argument_group(
            "The model",
            "These flags apply if exactly one model is served. docs/settings.md lists all settings"
            " of a model.",
        )
        for option in _model_flags():
            _add_flag(section, option, prefix=_MODEL_PREFIX)


def _settings_flags(command: Command) -> list[Option]:
    """Return the settings for which a command has a flag."""
    return [
        option
        for option in options(Settings).values()
        if option.flag and (option.group in command.groups or option.name in command.flags)
    ]


def _model_flags() -> list[Option]:
    """Return the model settings that have flags on the command line. Three kinds of model settings
    have no flag: tables, the settings in ``_NO_FLAGS``, and settings that also exist for the whole
    server."""
    general = options(Settings)
    return [
        option
        for option in options(Model).values()
        if option.name not in (*_NO_FLAGS, *general) and option.kind != "a table"
    ]


#: Prefix of the settings of a model among the parsed arguments.
_MODEL_PREFIX = "model."
#: Settings of a model that have no flag. The source is a positional argument. An API key in a flag
#: would be visible in the list of processes.
_NO_FLAGS = ("source", "api_key")


def _add_flag(section: Any, option: Option, prefix: str = "", *, is_hidden: bool = False) -> None:
    common = {"dest": prefix + option.name, "default": argparse.SUPPRESS}
    default = "" if option.default == "not set" else f" Default: {option.default}."
    words = argparse.SUPPRESS if is_hidden else (option.help + default).replace("%", "%%")
    if option.is_switch:
        off = f"--no-{(option.flag or '').removeprefix('--')}"
        section.add_argument(option.flag, action="store_const", const="true", help=words, **common)
        section.add_argument(
            off, action="store_const", const="false", help=argparse.SUPPRESS, **common
        )
    else:
        section.add_argument(option.flag, metavar=_metavar(option), help=words, **common)


def _metavar(option: Option) -> str:
    """Return a short placeholder for a flag's value: the allowed values, or the type of the
    value."""
    if option.kind.startswith('"'):
        return option.kind.replace('"', "").replace(" or ", "|").replace(", ", "|")
    return next(word for kind, word in _METAVARS.items() if option.kind.startswith(kind))


_METAVARS = {"a list": "A,B", "a path": "PATH", "a text": "TEXT", "a number": "N", "a whole": "N"}


def _flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags that the command in ``arguments`` accepts. From this list, the error message
    for an unknown flag suggests a similar flag."""
    if arguments.command is None:
        return ["--help"]
    command = COMMANDS[arguments.command]
    found = [*_settings_flags(command), *(_model_flags() if command.sets_model else ())]
    return ["--config", "--help", *(option.flag for option in found if option.flag)]


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
        choices=["list", "load", "unload", "pull"],
        help="list: show the models of the running server or, if none runs, those in the settings"
        " (default); load, unload: load or unload a model of the running server; pull: download a"
        " model",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="MODEL",
        help="name of a model; pull also accepts what antiphon pull accepts",
    )


def _launch_arguments(parser: argparse.ArgumentParser) -> None:
    from .launch import CLIENTS

    parser.add_argument("client", choices=list(CLIENTS), help="the coding agent")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="…", help="arguments for the coding agent"
    )


def _key_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["new", "list", "rotate", "revoke"],
        help="new: create a key; list: show all keys; rotate: replace the secret of a key; revoke:"
        " delete a key; all but new need --store",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the key")
    parser.add_argument(
        "--tenant", default="default", help="tenant of the new key (default: default)"
    )
    parser.add_argument(
        "--store",
        dest="in_store",
        nargs="?",
        const="",
        metavar="URL",
        help="manage the keys in the store (default: the store of the settings); without it, new"
        " prints a key for the settings file",
    )
    for limit in (*_KEY_LIMITS, *_KEY_LISTS):
        is_list = limit in _KEY_LISTS
        parser.add_argument(
            flag_name(limit),
            dest=f"key_{limit}",  # a setting has the same name
            metavar="A,B,…" if is_list else "N",
            help=options(ApiKey)[limit].help,
        )


_KEY_LIMITS = (
    "requests_per_minute",
    "tokens_per_minute",
    "tokens_per_day",
    "concurrent_requests",
    "background_runs",
)
_KEY_LISTS = ("models", "tools")


def _tenant_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["export", "delete"],
        help="export: write all data of the tenant to an archive; delete: delete all data of the"
        " tenant",
    )
    parser.add_argument("name", metavar="NAME", help="name of the tenant")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file for the exported archive (default: standard output)",
    )
    parser.add_argument("--yes", action="store_true", help="delete without asking for confirmation")


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    for flag, name, help in (
        ("--type", "type", "actions of this type, such as api_key.created"),
        ("--by", "key", "actions with the API key of this name"),
        ("--target", "target", "actions on the object with this name or id"),
    ):
        parser.add_argument(flag, dest=f"audit_{name}", metavar="NAME", help=f"only {help}")
    parser.add_argument(
        "--last",
        type=_period_count,
        metavar="N",
        default=20,
        help="show the last N actions (default: 20)",
    )


def _usage_arguments(parser: argparse.ArgumentParser) -> None:
    from .usage import GROUPS

    width = parser.add_mutually_exclusive_group()
    width.add_argument("--day", action="store_true", help="one row for each day (default)")
    width.add_argument("--hour", action="store_true", help="one row for each hour")
    parser.add_argument(
        "--by",
        action="append",
        choices=list(GROUPS),
        help="separate rows for each key, model or tenant; may be repeated",
    )
    parser.add_argument(
        "--last",
        type=_period_count,
        metavar="N",
        help="number of days or hours, with the current one (default: 7 days or 24 hours)",
    )
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")


def _period_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_PERIODS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_PERIODS}")
    return int(text)


_MAX_PERIODS = 10_000


def _index_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["add", "remove", "list", "count"],
        help="add or remove pages, list the pages with their titles, or count them",
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help="add: folders, files and URLs of pages; remove, list: the beginning of the URLs of"
        " pages",
    )
    parser.add_argument(
        "--as",
        dest="prefix",
        help="beginning of the URLs that added files get in the index (default: file:FOLDER/)",
    )


def _files_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["migrate", "collect"],
        help="migrate: move contents to the storage that the setting `files` names; collect: delete"
        " contents that belong to no file, as servers do every day",
    )
    parser.add_argument(
        "--from",
        dest="source",
        default="store",
        metavar="URL",
        help="storage that holds the contents now: `store` (default) or a value of the setting"
        " `files`",
    )


# --- commands ------------------------------------------------------------------------------------


def _serve(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from antiphon.bootstrap.access import page_is_served
    from antiphon.bootstrap.serve import serve, serve_with_workers
    from antiphon.http.uvicorn_server import run as run_loop

    from .doctor import summary

    human = loaded.settings.log_format == "human"
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def announce(serving: StartReport) -> None:
        console.print(f"Antiphon {__version__} at {serving.url}/v1", style="bold")
        for model in serving.models:
            size = f" · {model.context_size} tokens" if model.context_size else ""
            also = f" · also {', '.join(model.aliases)}" if model.aliases else ""
            console.print(f"  {model.name}{size}{also}")
        for line in summary(serving.capabilities):
            console.print(f"  {line}", style="dim")
        if page_is_served(loaded.settings):
            console.print(f"  In a browser: {serving.url}/")
        console.print(
            f"  Chat: {antiphon_command(_chat_arguments(loaded, serving.url))} · All settings:"
            f" {antiphon_command('settings')}",
            style="dim",
        )

    if loaded.settings.workers > 1:
        shown = announce if human else _silent
        run_loop(serve_with_workers(loaded, arguments.sources, shown))
        return
    run_loop(
        serve(
            loaded.settings,
            announce if human else _silent,
            warnings=loaded.warnings,
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


def _silent(_: Any) -> None:
    """Print nothing. In a server that logs JSON, this function takes the place of the function that
    prints the start report, because the log contains the same information."""


def _chat(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from .chat import chat
    from .client import find_server

    chat(find_server(loaded), model=loaded.settings.chat_model)


def _launch(loaded: LoadedSettings, arguments: argparse.Namespace) -> int:
    from .client import find_server
    from .launch import launch

    model = loaded.settings.chat_model
    return launch(find_server(loaded), arguments.client, arguments.arguments, model=model)


def _models(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from .models import run

    run(loaded, arguments.action, arguments.name)


def _usage(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from .usage import run

    run(
        loaded,
        by_hour=arguments.hour,
        periods=arguments.last or (24 if arguments.hour else 7),
        groups=tuple(dict.fromkeys(arguments.by or ())),
        as_csv=arguments.csv,
        now=int(time.time()),  # noqa: TID251 - the clock of the command
    )


def _pull(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from .models import pull_here

    pull_here(arguments.source, loaded.settings)


def _index(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    asyncio.run(_run_index(loaded.settings, arguments))


async def _run_index(settings: Settings, arguments: argparse.Namespace) -> None:
    from antiphon.attachments.documents import Documents
    from antiphon.bootstrap.attachments import open_fetcher
    from antiphon.models.download import progress_bar
    from antiphon.tools.web_search.index import PageIndex
    from antiphon.tools.web_search.index_builder import add_source

    if arguments.action in ("add", "remove") and not arguments.what:
        raise SetupError(
            f"antiphon index {arguments.action}: name at least one folder, file or URL"
        )
    if arguments.action != "add" and not settings.web_index.is_file():
        command = antiphon_command("index add FOLDER")
        raise SetupError(f"No index at {settings.web_index}. To make one: {command}")
    async with AsyncExitStack() as stack:
        index = PageIndex(settings.web_index)
        stack.push_async_callback(index.close)
        fetcher = await stack.enter_async_context(open_fetcher(settings))
        documents = Documents()
        for what in arguments.what or ([""] if arguments.action == "list" else []):
            if arguments.action == "remove":
                _print_line(f"{what}  {await index.remove(what)} removed")
            elif arguments.action == "list":
                for url, title in await index.list(what):
                    _print_line(f"{url}  {title}")
            elif arguments.action == "add":
                with progress_bar("files") as progress:
                    added = await add_source(
                        index,
                        what,
                        documents=documents,
                        prefix=arguments.prefix,
                        fetcher=fetcher,
                        progress=partial(progress, what),
                    )
                removed = f", {added.removed_count} removed" if added.removed_count else ""
                _print_line(f"{what}  {added.pages} pages{removed}")
                for reason in added.skip_reasons:
                    _print_line(f"  {reason}")
        _print_line(f"{settings.web_index}  {await index.count()} pages in total")


def _files(loaded: LoadedSettings, arguments: argparse.Namespace) -> int:
    from .files import collect, migrate

    if arguments.action == "migrate":
        return asyncio.run(migrate(loaded.settings, arguments.source, _print_line))
    asyncio.run(collect(loaded.settings, _print_line))
    return 0


def _migrate(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    asyncio.run(_run_migrations(loaded.settings))


async def _run_migrations(settings: Settings) -> None:
    from antiphon.store import open_store

    store = await open_store(
        settings.store, vectors=settings.vectors, vectors_key=settings.vectors_key
    )
    await store.close()
    _print_line("The tables of the store are up to date.")


def _settings(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    for name, option in options(Settings).items():
        value = getattr(loaded.settings, name)
        if isinstance(value, dict) or name == "keys":
            continue
        shown = literal("hidden") if option.secret and value else literal(value)
        line = f"{name} = {shown}" if value is not None else f"# {name} is not set"
        _print_line(f"{line}  # {loaded.origins[name]}")
    for name, model in loaded.settings.models.items():
        _table(f"[models.{literal(name)}]", model, loaded.origins["models"])
    for name, server in loaded.settings.mcp_servers.items():
        _table(f"[mcp_servers.{literal(name)}]", server, loaded.origins["mcp_servers"])
    for key in loaded.settings.keys:
        _table("[[keys]]", key, loaded.origins["keys"])


def _table(heading: str, table: Model | McpServer | ApiKey, origin: str) -> None:
    _print_line(f"\n{heading}  # {origin}")
    for name, option in options(type(table)).items():
        value = getattr(table, name)
        if value is not None:
            _print_line(
                f"{name} = {literal('hidden' if option.secret and value else mask_secrets(value))}"
            )


def _doctor(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from .doctor import report

    for line in asyncio.run(report(loaded.settings)):
        _print_line(line)


def _demo(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from antiphon.http.uvicorn_server import run as run_loop

    from .demo.command import run_demo

    def show(text: str) -> None:
        _print_line(text)
        sys.stdout.flush()

    run_loop(run_demo(loaded.settings, show, once=arguments.once))


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="stop the server after the tour")


def _key(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    limits: dict[str, Any] = {}
    for name in (*_KEY_LIMITS, *_KEY_LISTS):
        if (text := getattr(arguments, f"key_{name}")) is not None:
            limits[name] = from_text(options(ApiKey)[name], text, flag_name(name))
    if arguments.in_store is not None:
        return _stored_key(_with_store(loaded, arguments), arguments, limits)
    if arguments.action != "new":
        raise SetupError("antiphon key: only keys in the store can be managed: add --store")
    secret = f"sk-{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    fields = {"name": arguments.name} if arguments.name else {}
    fields |= {"tenant": arguments.tenant, "sha256": digest, **limits}
    _print_line(f"{secret}\n")
    sys.stderr.write("The key is shown only once. Add this to antiphon.toml:\n")
    lines = [f"{name} = {literal(value)}" for name, value in fields.items()]
    _print_line("\n".join(["[[keys]]", *lines]))


def _with_store(loaded: LoadedSettings, arguments: argparse.Namespace) -> LoadedSettings:
    """Return the settings with the store that ``--store`` names, if it names one."""
    from .keys import STORE_FLAG

    store = arguments.in_store
    if not store:
        return loaded
    settings = replace(loaded.settings, store=store)
    return replace(loaded, settings=settings, origins={**loaded.origins, "store": STORE_FLAG})


def _stored_key(
    loaded: LoadedSettings, arguments: argparse.Namespace, limits: Mapping[str, Any]
) -> None:
    from . import keys

    name = arguments.name

    if arguments.action == "list":
        names = (*_KEY_LIMITS, *_KEY_LISTS)
        for key in keys.list_keys(loaded):
            shown = (f"{name} = {_shown(key[name])}" for name in names if key[name] is not None)
            parts = (key["name"], key["tenant"], key["redacted_value"], *shown)
            _print_line("  ".join(parts))
        return
    if name is None:
        raise SetupError(
            f"antiphon key {arguments.action}: give the name of the key before --store"
        )
    if arguments.action == "revoke":
        keys.revoke_key(loaded, name)
        return _print_line(f"{name}  revoked")
    if arguments.action == "rotate":
        secret = keys.rotate_key(loaded, name)
    else:
        secret = keys.new_key(loaded, {"name": name, "tenant": arguments.tenant, **limits})
    _print_line(secret)
    sys.stderr.write("The key is shown only once.\n")
    if not loaded.settings.stored_keys:
        sys.stderr.write("Servers accept it if they have the setting stored_keys = true.\n")


def _shown(limit: Any) -> str:
    return ", ".join(limit) if isinstance(limit, list | tuple) else str(limit)


def _tenant(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from . import tenants

    if arguments.action == "export":
        return tenants.export_tenant(loaded, arguments.name, arguments.output)

    def confirm() -> str:
        sys.stderr.write(f"This deletes all data of the tenant {arguments.name}. Repeat its name: ")
        sys.stderr.flush()
        return sys.stdin.readline().strip()

    tenants.delete_tenant(loaded, arguments.name, confirm=None if arguments.yes else confirm)
    _print_line(f"{arguments.name}  deleted")


def _audit(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from . import tenants

    filters = {name: getattr(arguments, f"audit_{name}") for name in ("type", "key", "target")}
    given = {name: value for name, value in filters.items() if value is not None}
    for line in tenants.list_audit_events(loaded, given, count=arguments.last):
        _print_line(line)


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")


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

COMMANDS: Mapping[str, Command] = {
    "serve": Command(
        help="Start a server that serves models.",
        run=_serve,
        groups=_SERVE_GROUPS,
        sets_model=True,
        takes="[MODEL …] ",
        arguments=_models_argument,
    ),
    "chat": Command(
        help="Chat with a running server.", run=_chat, groups=("Chat",), flags=("port",)
    ),
    "launch": Command(
        help="Start a coding agent that uses a running server, with a temporary configuration.",
        run=_launch,
        groups=("Chat",),
        flags=("port",),
        takes="codex|claude|opencode|pi [ARGUMENT …] ",
        arguments=_launch_arguments,
    ),
    "models": Command(
        help="List, load and unload the models of a running server, or download a model.",
        run=_models,
        groups=("Models",),
        flags=("port", "chat_url", "chat_key"),
        takes="[list|load|unload|pull] [MODEL] ",
        arguments=_models_arguments,
    ),
    "usage": Command(
        help="Show the usage of a running server: requests, tokens and tool calls.",
        run=_usage,
        flags=("port", "chat_url", "chat_key"),
        arguments=_usage_arguments,
    ),
    "tenant": Command(
        help="Export or delete everything that a running server stores for a tenant.",
        run=_tenant,
        flags=("port", "chat_url", "chat_key"),
        takes="export|delete NAME ",
        arguments=_tenant_arguments,
    ),
    "audit": Command(
        help="Show the audit log of a running server: who administered it, when and how.",
        run=_audit,
        flags=("port", "chat_url", "chat_key"),
        arguments=_audit_arguments,
    ),
    "pull": Command(
        help="Download a model to this machine.",
        run=_pull,
        groups=("Models",),
        takes="MODEL ",
        arguments=_pull_argument,
    ),
    "index": Command(
        help="Manage the local index that the tool web_search searches.",
        run=_index,
        groups=("Tools", "Fetching"),
        takes="add|remove|list|count [WHAT …] ",
        arguments=_index_arguments,
    ),
    "files": Command(
        help="Move the contents of uploaded files, or delete unused contents.",
        run=_files,
        groups=("Storage",),
        takes="migrate|collect ",
        arguments=_files_arguments,
    ),
    "migrate": Command(
        help="Create or upgrade the tables of the store, as a server does when it starts.",
        run=_migrate,
        groups=("Storage",),
    ),
    "settings": Command(
        help="Show every setting and where its value comes from.",
        run=_settings,
        groups=(*_SERVE_GROUPS, "Chat"),
    ),
    "doctor": Command(
        help="Show which models and tools work on this machine, and how to turn on the rest.",
        run=_doctor,
        groups=("Fetching", "Tools", "Models"),
    ),
    "demo": Command(
        help="Start a server whose model is a script, and show a tour of the API with real tools.",
        run=_demo,
        groups=("Server",),
        arguments=_demo_arguments,
    ),
    "key": Command(
        help="Create an API key; list, rotate and revoke the API keys in the store.",
        run=_key,
        flags=("port", "chat_url", "chat_key"),
        takes="new|list|rotate|revoke [NAME] ",
        arguments=_key_arguments,
    ),
}
