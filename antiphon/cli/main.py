"""The command line: parses the arguments and runs one command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from antiphon.config.load import SettingsSources
from antiphon.config.options import did_you_mean, options
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.support.text import similar_name

from .commands.table import COMMANDS
from .foreign_flags import hint
from .parser import MODEL_PREFIX, command_flags, create_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; ``argv`` defaults to the process's arguments. Without arguments, a server is
    started. ``help COMMAND`` is ``COMMAND --help``, and ``version`` is ``--version``.

    Returns the exit code: 2 for an error that the user can fix (one line on stderr), 130 after
    Ctrl-C, 0 for success.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["serve"]
    if words[0] in ("help", "version"):
        words = [*words[1:], f"--{words[0]}"]
    parser = create_parser(words)
    try:
        if not words[0].startswith("-") and words[0] not in COMMANDS:
            raise SetupError(
                f"unknown command {words[0]!r}{did_you_mean(words[0], COMMANDS)} (antiphon --help)"
            )
        if words[:1] == ["serve"] and (foreign := hint(words)) is not None:
            raise SetupError(foreign)
        arguments, rest = parser.parse_known_args(words)
        if rest:
            similar = similar_name(rest[0], command_flags(arguments))
            meant = f"; did you mean {similar}?" if similar else ""
            raise SetupError(f"unknown argument {rest[0]}{meant}")
        known = options(Settings)
        given = vars(arguments)
        flags = {name: value for name, value in given.items() if name in known}
        model_flags = {
            name.removeprefix(MODEL_PREFIX): value
            for name, value in given.items()
            if name.startswith(MODEL_PREFIX)
        }
        arguments.sources = SettingsSources(
            flags=flags,
            model_flags=model_flags,
            file=None if arguments.config is None else str(arguments.config),
        )
        loaded = arguments.sources.load()
        return COMMANDS[arguments.command].run(loaded, arguments) or 0
    except SetupError as error:
        sys.stderr.write(f"antiphon: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output closed it
        sys.stdout = open(os.devnull, "w")  # Python would report the closed pipe at exit
    return 0
