"""Entry point of the command line: ``python -m antiphon`` and the ``antiphon`` script.

While modules are being imported, Ctrl-C ends the process immediately. Otherwise Ctrl-C would raise
``KeyboardInterrupt`` in the middle of an import, which would print a traceback or get lost.
"""

import gc
import os
import sys

# ``python -m`` looks for modules in the working folder first, so a file ``json.py`` there would
# take the place of Python's own module.
if __name__ == "__main__" and not sys.flags.safe_path:
    try:
        _folder = os.getcwd()
    except FileNotFoundError:  # it was deleted
        _folder = ""
    if sys.path[:1] == [_folder]:
        del sys.path[0]

import signal

#: Number of allocations between two garbage collections. Imports create no garbage. With Python's
#: default of 700, collections would take a fifth of the time of all imports.
_GC_THRESHOLD = 100_000

# A signal that is ignored stays ignored: shells ignore SIGINT for background processes.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run() -> int:
    """Run the command line. Returns the exit code; 130 after Ctrl-C."""
    gc.set_threshold(_GC_THRESHOLD)
    try:
        from antiphon.cli.main import main

        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
