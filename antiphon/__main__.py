"""``python -m antiphon`` and the ``antiphon`` script: the command line.

Imports it late, so that Ctrl-C in the first moments ends the process without a traceback."""

import sys

__all__ = ["run"]


def run() -> int:
    """Run the command line. Returns the exit code; 130 after Ctrl-C."""
    try:
        from antiphon.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
