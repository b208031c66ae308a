"""A child process of the supervisor. Its arguments: the descriptor of the socket to it, and its
name, for those who list processes."""

import sys

__all__: list[str] = []

if __name__ == "__main__":
    from antiphon.workers.process import run_child

    sys.exit(run_child(int(sys.argv[1])))
