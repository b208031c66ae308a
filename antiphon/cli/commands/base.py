"""The type of a command, and what commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from msgspec import Struct

from antiphon.config.load import LoadedSettings


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
    arguments: Callable[[argparse.ArgumentParser], object] | None = None


def print_line(text: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(text + "\n")
