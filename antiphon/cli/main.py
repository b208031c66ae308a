"""The command line: arguments in, one of the commands run, one clear line where it cannot be.

Flags follow from the settings. It knows which command calls what, and none of the work.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct
from rich.console import Console

from antiphon import __version__
from antiphon.config.load import Loaded, load
from antiphon.config.options import Option, literal, nearest, options
from antiphon.config.settings import Key, McpServer, Model, Settings
from antiphon.errors import SetupError

__all__ = ["COMMANDS", "Command", "main"]


class Command(Struct, frozen=True, kw_only=True):
    """A command: what it is for, what runs it, and which settings it takes as flags, by group."""

    help: str
    run: Callable[[Loaded, argparse.Namespace], None]
    groups: tuple[str, ...] = ()
    takes: str = ""
    arguments: Callable[[argparse.ArgumentParser], Any] | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` by default is the process's. Returns the exit code: 0, 2 for what
    the user must change (said in one line on stderr), 130 after Ctrl-C."""
    parser = _parser()
    try:
        given, rest = parser.parse_known_args(argv)
        if rest:
            raise SetupError(f"unknown argument {rest[0]}{nearest(rest[0], _flags(given))}")
        if given.command is None:
            parser.print_help()
            return 0
        known = options(Settings)
        flags = {name: value for name, value in vars(given).items() if name in known}
        COMMANDS[given.command].run(load(flags, file=given.config), given)
    except SetupError as error:
        sys.stderr.write(f"antiphon: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads the output has seen enough
        sys.stdout = open(os.devnull, "w")  # or Python complains again when it exits
        return 0
    return 0


# --- arguments -----------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse, saying what is wrong in one line, and accepting no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise SetupError(f"{message} ({self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="antiphon", description="The OpenAI Responses API for your own models.")
    parser.add_argument("--version", action="version", version=f"antiphon {__version__}")
    parser.set_defaults(config=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=command.help,
            usage=f"antiphon {name} {command.takes}[--FLAG …]",
        )
        if command.arguments is not None:
            command.arguments(sub)
        sub.add_argument(
            "--config", type=Path, metavar="FILE", help="the settings file (antiphon.toml)"
        )
        _add_flags(sub, command.groups)
    return parser


def _add_flags(parser: argparse.ArgumentParser, groups: Sequence[str]) -> None:
    sections: dict[str, Any] = {}
    for option in options(Settings).values():
        if option.group in groups and option.flag is not None:
            if option.group not in sections:
                sections[option.group] = parser.add_argument_group(option.group)
            _add_flag(sections[option.group], option)


def _add_flag(section: Any, option: Option) -> None:
    common = {"dest": option.name, "default": argparse.SUPPRESS}
    default = "" if option.default == "not set" else f" Default: {option.default}."
    words = (option.help + default).replace("%", "%%")
    if option.is_switch:
        off = f"--no-{(option.flag or '').removeprefix('--')}"
        section.add_argument(option.flag, action="store_const", const="true", help=words, **common)
        section.add_argument(
            off, action="store_const", const="false", help=argparse.SUPPRESS, **common
        )
    else:
        section.add_argument(option.flag, metavar=_metavar(option), help=words, **common)


def _metavar(option: Option) -> str:
    """A short word for what a flag takes: its choices, or its kind."""
    if option.kind.startswith('"'):
        return option.kind.replace('"', "").replace(" or ", "|")
    return next(word for kind, word in _METAVARS.items() if option.kind.startswith(kind))


_METAVARS = {"a list": "A,B", "a path": "PATH", "a text": "TEXT", "a number": "N", "a whole": "N"}


def _flags(given: argparse.Namespace) -> list[str]:
    """What may stand after the command that was given."""
    groups = COMMANDS[given.command].groups if given.command else ()
    found = [option.flag for option in options(Settings).values() if option.group in groups]
    return ["--config", "--help", *(flag for flag in found if flag)]


def _models_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="a GGUF file, a folder with one, hf:owner/repo, owner/repo:Q4_K_M, NAME=SOURCE, or the"
        " name of a model in the settings file; by default all of these, or else a small one",
    )


def _pull_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="MODEL", help="hf:owner/repo/file.gguf, owner/repo:Q4_0 …"
    )


def _key_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["new"])
    parser.add_argument("--tenant", default="default", help="whose key it is")


def _index_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["add", "remove", "list", "count"])
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help="folders, files and URLs; to remove or list: how URLs begin",
    )
    parser.add_argument("--as", dest="prefix", help="what the URLs of files begin with")


# --- commands ------------------------------------------------------------------------------------


def _serve(loaded: Loaded, given: argparse.Namespace) -> None:
    from antiphon.http.uvicorn_server import run as run_loop
    from antiphon.server import Serving, run

    human = loaded.settings.log_format == "human"
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def announce(serving: Serving) -> None:
        console.print(f"Antiphon {__version__} at {serving.url}/v1", style="bold")
        for model in serving.models:
            size = f" · {model.context_size} tokens" if model.context_size else ""
            also = f" · also {', '.join(model.aliases)}" if model.aliases else ""
            console.print(f"  {model.name}{size}{also}")
        console.print(
            "  Talk to it: antiphon chat · What can be set: antiphon settings", style="dim"
        )

    run_loop(run(loaded.settings, announce if human else _silent))


def _silent(_: Any) -> None:
    """For those who read the log."""


def _chat(loaded: Loaded, given: argparse.Namespace) -> None:
    from .chat import chat

    settings = loaded.settings
    if settings.chat_url is None:
        from antiphon.server import address

        url = address(settings.host, settings.port)
    else:
        url = settings.chat_url
    chat(url, model=settings.chat_model, key=settings.chat_key)


def _models(loaded: Loaded, given: argparse.Namespace) -> None:
    from antiphon.models.download import resolve

    cache = loaded.settings.cache_dir
    for name, model in loaded.settings.models.items():
        there = Path(model.source).expanduser()
        path = there if there.exists() else resolve(model.source, cache)
        _say(f"{name}  {model.source}  {path or 'not fetched yet'}")
    for file in sorted(cache.rglob("*.gguf")):
        _say(f"{file}  {file.stat().st_size / 1e6:.0f} MB")


def _pull(loaded: Loaded, given: argparse.Namespace) -> None:
    from antiphon.models.download import bar, pull

    with bar() as progress:
        path = asyncio.run(pull(given.source, loaded.settings.cache_dir, progress))
    _say(str(path))


def _index(loaded: Loaded, given: argparse.Namespace) -> None:
    asyncio.run(_indexed(loaded.settings, given))


async def _indexed(settings: Settings, given: argparse.Namespace) -> None:
    from antiphon.attachments.documents import Documents
    from antiphon.server import open_fetcher
    from antiphon.tools.web_search.index import Index
    from antiphon.tools.web_search.index_builder import add

    if given.action in ("add", "remove") and not given.what:
        raise SetupError(f"antiphon index {given.action}: say what")
    if given.action != "add" and not settings.web_index.is_file():
        raise SetupError(f"There is no index {settings.web_index}: antiphon index add makes one")
    index = Index(settings.web_index)
    fetcher = open_fetcher(settings)
    documents = Documents()
    try:
        for what in given.what or ([""] if given.action == "list" else []):
            if given.action == "remove":
                _say(f"{what}  {await index.remove(what)} removed")
            elif given.action == "list":
                for url, title in await index.list(what):
                    _say(f"{url}  {title}")
            elif given.action == "add":
                added = await add(
                    index, what, documents=documents, prefix=given.prefix, fetcher=fetcher
                )
                gone = f", {added.gone} gone" if added.gone else ""
                _say(f"{what}  {added.pages} pages{gone}")
                for why in added.skipped:
                    _say(f"  {why}")
        _say(f"{settings.web_index}  {await index.count()} pages in all")
    finally:
        await index.close()
        if fetcher is not None:
            await fetcher.close()


def _settings(loaded: Loaded, given: argparse.Namespace) -> None:
    for name, option in options(Settings).items():
        value = getattr(loaded.settings, name)
        if isinstance(value, dict) or name == "keys":
            continue
        shown = literal("hidden") if option.secret and value else literal(value)
        line = f"{name} = {shown}" if value is not None else f"# {name} is not set"
        _say(f"{line}  # {loaded.origins[name]}")
    for name, model in loaded.settings.models.items():
        _table(f"[models.{literal(name)}]", model, loaded.origins["models"])
    for name, server in loaded.settings.mcp_servers.items():
        _table(f"[mcp_servers.{literal(name)}]", server, loaded.origins["mcp_servers"])
    for key in loaded.settings.keys:
        _table("[[keys]]", key, loaded.origins["keys"])


def _table(heading: str, table: Model | McpServer | Key, origin: str) -> None:
    _say(f"\n{heading}  # {origin}")
    for name, option in options(type(table)).items():
        value = getattr(table, name)
        if value is not None:
            _say(f"{name} = {literal('hidden' if option.secret and value else _hidden(value))}")


def _hidden(value: Any) -> Any:
    """A table without what its names say is secret."""
    if not isinstance(value, dict):
        return value
    return {
        name: "hidden" if _SECRET.search(name) and inner else _hidden(inner)
        for name, inner in value.items()
    }


_SECRET = re.compile("header|key|token$|secret|password|authorization", re.IGNORECASE)


def _key(loaded: Loaded, given: argparse.Namespace) -> None:
    key = f"sk-{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    _say(f"{key}\n")
    sys.stderr.write("It is shown only now. For antiphon.toml:\n")
    _say(f"[[keys]]\ntenant = {literal(given.tenant)}\nsha256 = {literal(digest)}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


_SERVING = (
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
        help="Serve models.",
        run=_serve,
        groups=_SERVING,
        takes="[MODEL …] ",
        arguments=_models_argument,
    ),
    "chat": Command(help="Talk to a running server.", run=_chat, groups=("Chat",)),
    "models": Command(help="Show the models named or fetched.", run=_models, groups=("Models",)),
    "pull": Command(
        help="Fetch a model.",
        run=_pull,
        groups=("Models",),
        takes="MODEL ",
        arguments=_pull_argument,
    ),
    "index": Command(
        help="Fill the index that web searches go to.",
        run=_index,
        groups=("Tools", "Fetching"),
        takes="add|remove|list|count [WHAT …] ",
        arguments=_index_arguments,
    ),
    "settings": Command(
        help="Show every setting, and where it came from.",
        run=_settings,
        groups=(*_SERVING, "Chat"),
    ),
    "key": Command(help="Make an API key.", run=_key, takes="new ", arguments=_key_arguments),
}
