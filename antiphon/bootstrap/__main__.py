"""Entry point of a child process of the supervisor.

The first argument is the file descriptor of the socket to the supervisor. The second argument is
the name of the process. The program does not use the name. It only shows what the process is in
lists of processes, such as the output of ``ps``.
"""

import sys

__all__: list[str] = []

if __name__ == "__main__":
    from antiphon.bootstrap.child_process import run_child

    sys.exit(run_child(int(sys.argv[1])))
