"""The command ``install``."""

from __future__ import annotations

import argparse

from antiphon.config.load import LoadedSettings

from .base import Command, print_line


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "features",
        nargs="*",
        metavar="FEATURE",
        help="features to install (default: list them with the size of their download)",
    )
    parser.add_argument(
        "-y", "--yes", dest="is_confirmed", action="store_true", help="install without asking"
    )


def _install(loaded: LoadedSettings, arguments: argparse.Namespace) -> int:
    from ..install import install, list_features

    if arguments.features:
        return install(arguments.features, is_confirmed=arguments.is_confirmed)
    for line in list_features():
        print_line(line)
    return 0


INSTALL = Command(
    help="Install the packages of a feature, such as documents or web search.",
    run=_install,
    takes="[FEATURE …] ",
    arguments=_arguments,
)
