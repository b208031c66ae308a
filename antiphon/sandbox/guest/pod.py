"""The agent inside a pod: a program that serves the server's requests. The pod's runtime, an HTTP
server in the pod, starts it and passes requests to it.

The runtime can only run commands, one after the other, and return their output. But the agent has
to keep the Python interpreter between requests, so the agent runs in the background and listens on
a socket. There is one command for each action:

- ``python3 .antiphon.zip serve``: start the agent.
- ``python3 .antiphon.zip call REQUEST``: send the request in the file REQUEST to the agent, and
  print the answer.
- ``python3 .antiphon.zip stop``: interrupt the running request.

This module uses only the standard library, because it runs in the Python interpreter of the pod.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

from .agent import Agent
from .python_kernel import HOME, receive_frame

SKILLS = "/mnt/skills"
#: The folder of the agent. ``SOCKET``: the socket of the agent. ``CALLER``: the file with the id of
#: the process whose request the agent serves.
FOLDER = "/mnt/.antiphon"
SOCKET, CALLER = f"{FOLDER}/agent", f"{FOLDER}/caller"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "agg",
    "MPLCONFIGDIR": "/tmp/matplotlib",
}
_PR_SET_CHILD_SUBREAPER = 36


class _PodAgent(Agent):
    """The agent of a pod. It serves one connection after another. The Python interpreter and its
    variables live on between connections."""

    def __init__(self) -> None:
        super().__init__(-1, -1)
        self.operations["share"] = self.share

    def serve_connection(self, connection: socket.socket) -> None:
        # The agent needs two descriptors, because forked processes close both.
        self.input_fd, self.output_fd = connection.detach(), -1
        self.output_fd = os.dup(self.input_fd)
        try:
            with suppress(OSError, ValueError):  # the caller is gone
                self.serve()
        finally:
            for fd in (self.input_fd, self.output_fd):
                os.close(fd)

    def share(self, request: Any) -> Any:
        """Write the files of a skill to the folder of this skill. Existing files of the skill are
        deleted first. ``request``: the name of the skill, its files, and which of them are
        executable."""
        folder = os.path.join(SKILLS, request["name"])
        shutil.rmtree(folder, ignore_errors=True)
        for path, content in request["files"].items():
            file = os.path.join(folder, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as opened:
                opened.write(base64.b64decode(content))
            os.chmod(file, 0o555 if path in request["scripts"] else 0o444)
        return {}


def serve() -> None:
    """Start the agent in the background, and wait until it listens."""
    for folder in (HOME, SKILLS, FOLDER):
        os.makedirs(folder, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(SOCKET)
    except OSError:  # the socket is left over from before the container was restarted
        os.unlink(SOCKET)
        listener.bind(SOCKET)
    listener.listen()
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    listener.set_inheritable(True)
    command = [sys.executable, "-S", sys.argv[0], "listen", str(listener.fileno())]
    os.chdir(HOME)
    os.execve(sys.executable, command, ENVIRONMENT)


def listen(listener: socket.socket) -> None:
    """Serve connections at ``listener`` until the pod ends. This is the main loop of the agent."""
    import ctypes

    # Orphaned processes become children of the agent. So the agent can end them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener.set_inheritable(False)
    agent = _PodAgent()
    while True:
        agent.serve_connection(listener.accept()[0])


def call(path: str) -> None:
    """Send the request in the file ``path`` to the agent, and print the agent's answer. The file is
    deleted."""
    with open(path, "rb") as file:
        body = file.read()
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        with open(CALLER, "w") as file:
            file.write(str(os.getpid()))
        connection.sendall(struct.pack(">I", len(body)) + body)
        sys.stdout.write(json.dumps(receive_frame(connection.fileno())))


def stop() -> None:
    """Interrupt the request that the agent is serving: end the client process that sent the
    request. When the agent notices that the client process has ended, it interrupts the request."""
    with open(CALLER) as file:
        caller = int(file.read())
    with suppress(ProcessLookupError):
        os.kill(caller, signal.SIGTERM)


def main() -> None:
    """Run the subcommand that the command line names."""
    action, *arguments = sys.argv[1:]
    if action == "listen":
        listen(socket.socket(fileno=int(arguments[0])))
    elif action == "call":
        call(arguments[0])
    else:
        {"serve": serve, "stop": stop}[action]()
