"""The parser of the command line. Most flags are derived from the settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from antiphon import __version__
from antiphon.config.model import Model
from antiphon.config.options import Option, options
from antiphon.config.settings import Settings
from antiphon.errors import SetupError

from .commands.base import Command
from .commands.table import COMMANDS


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors and without abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise SetupError(f"{message} ({self.prog} --help)")


def create_parser(words: Sequence[str]) -> argparse.ArgumentParser:
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
    sections: dict[str, argparse._ArgumentGroup] = {}
    for option in _settings_flags(command):
        if option.group not in sections:
            sections[option.group] = parser.add_argument_group(option.group)
        _add_flag(sections[option.group], option)
    if command.sets_model:
        section = parser.add_argument_group(
            "The model",
            "These flags apply if exactly one model is served. docs/settings.md lists all settings"
            " of a model.",
        )
        for option in _model_flags():
            _add_flag(section, option, prefix=MODEL_PREFIX)


def _settings_flags(command: Command) -> list[Option]:
    """Return the settings that can be set by flags of a command."""
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
MODEL_PREFIX = "model."


#: Settings of a model that have no flag. The source is a positional argument. An API key in a flag
#: would be visible in the list of processes.
_NO_FLAGS = ("source", "api_key")


def _add_flag(section: argparse._ArgumentGroup, option: Option, prefix: str = "") -> None:
    name, flag, unset = prefix + option.name, option.flag or "", argparse.SUPPRESS
    default = "" if option.default == "not set" else f" Default: {option.default}."
    words = (option.help + default).replace("%", "%%")
    if not option.is_switch:
        section.add_argument(flag, metavar=_metavar(option), help=words, dest=name, default=unset)
        return
    off = f"--no-{flag.removeprefix('--')}"
    for switch, value, help in ((flag, "true", words), (off, "false", unset)):
        section.add_argument(
            switch, action="store_const", const=value, help=help, dest=name, default=unset
        )


def _metavar(option: Option) -> str:
    """Return a short placeholder for a flag's value: the allowed values, or the type of the
    value."""
    if option.kind.startswith('"'):
        return option.kind.replace('"', "").replace(" or ", "|").replace(", ", "|")
    return next(word for kind, word in _METAVARS.items() if option.kind.startswith(kind))


_METAVARS = {"a list": "A,B", "a path": "PATH", "a text": "TEXT", "a number": "N", "a whole": "N"}


def command_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the flags that the command in ``arguments`` accepts. From this list, the error message
    for an unknown flag suggests a similar flag."""
    if arguments.command is None:
        return ["--help", "--version"]
    command = COMMANDS[arguments.command]
    found = [*_settings_flags(command), *(_model_flags() if command.sets_model else ())]
    return ["--config", "--help", *(option.flag for option in found if option.flag)]
