"""``python -m antiphon``: the command line, where its script is not on the path."""

import sys

from antiphon.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
