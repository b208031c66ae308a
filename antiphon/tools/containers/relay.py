"""RPC calls between the processes that own containers and the processes that use them.

On one machine, the calls use Unix sockets. Between servers, they use signed HTTP. A server with
several workers has one URL and one process that owns its containers. The worker that receives a
call from another server forwards the call to the owner.
"""

from __future__ import annotations

import os
import secrets
import socket
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from antiphon.errors import PeerLost
from antiphon.ipc.calls import Calls, NoCalls
from antiphon.ipc.client import CallClient
from antiphon.ipc.http_calls import HttpCaller
from antiphon.ipc.http_endpoint import AnswerCall
from antiphon.ipc.methods import CallableMethods
from antiphon.ipc.server import CallServer
from antiphon.security.ssrf import is_loopback

from .local import ContainerOwner, LocalContainers
from .session import ContainerSession

#: Suffix of the sockets' file names. The names are short because the path of a Unix socket is
#: limited to about 100 characters.
_SUFFIX = ".box"


class ContainerRelay:
    """Connects this process with the other processes that own containers. The relay sends RPC calls
    to these processes and answers their RPC calls.

    - ``folder``: folder with the sockets of all processes of this server. None for a server without
      workers.
    - ``url``: address of this server for other servers. Empty if other servers cannot reach it.
    - ``caller``: sends RPC calls to other servers.
    """

    def __init__(
        self, *, folder: Path | None = None, url: str = "", caller: HttpCaller | None = None
    ) -> None:
        self._scope = _loopback_scope()
        self._id = f"{self._scope}-{secrets.token_hex(8)}"
        self._folder = folder
        self._url = url
        self._caller = caller
        self._clients: dict[str, CallClient] = {}
        self._methods: CallableMethods | None = None
        self._server: CallServer | None = None

    @property
    def owner(self) -> ContainerOwner:
        """This process as an owner of containers: its id and its URL."""
        return ContainerOwner(id=self._id, url=self._url)

    def connect(self, owner: str, url: str) -> Calls:
        """Return the client for RPC calls to the process with the id ``owner``. ``url``: address of
        that process's server. The address is empty if other servers cannot reach that server."""
        if (client := self._client(owner)) is not None:
            return client
        is_local = is_loopback(urlsplit(url).hostname or "")
        if is_local and not owner.startswith(f"{self._scope}-"):
            return NoCalls()  # the owner listens at the loopback address of another machine
        if url and url != self._url and self._caller is not None:
            return self._caller.calls(owner, url)
        # An owner that still ran would listen at this server's own loopback address or in its
        # folder.
        has_ended = is_local if url else self._folder is not None
        return NoCalls(is_gone=has_ended)

    def find(self, owner: str) -> AnswerCall | None:
        """Return a function for an RPC call that is addressed to the process with the id
        ``owner``. If this is that process, the function answers the call. If another process of
        this server has this id, the function forwards the call to it. Return None if no process of
        this server can answer the call."""
        if owner == self._id and self._methods is not None:
            return self._methods.answers
        client = self._client(owner)
        return None if client is None else client.forward

    def remove_abandoned(self) -> tuple[str, ...]:
        """Remove all sockets in the folder ``folder``. Return the ids of the processes that opened
        these sockets.

        Call this method before this process opens its own socket in the folder. At this time, all
        sockets in the folder belong to processes of this server that owned containers and have
        died.
        """
        if self._folder is None:
            return ()
        paths = tuple(self._folder.glob(f"*{_SUFFIX}"))
        for path in paths:
            path.unlink(missing_ok=True)
        return tuple(f"{self._scope}-{path.stem}" for path in paths)

    async def open(self, local: LocalContainers) -> None:
        """Start to answer RPC calls from other processes. ``local``: the containers of this
        process, which these calls may use."""
        self._methods = CallableMethods(ContainerSession(local))
        if self._folder is not None:
            self._server = CallServer(lambda: ContainerSession(local))
            await self._server.open(self._socket(self._folder, self._id))

    async def close(self) -> None:
        """Stop answering RPC calls, and close the connections to other processes."""
        self._methods = None
        if self._folder is not None and self._server is not None:
            self._socket(self._folder, self._id).unlink(missing_ok=True)
            await self._server.close()
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, owner: str) -> CallClient | None:
        """Return the client for RPC calls to another process of this server. Return None if the
        process has no socket."""
        if self._folder is None:
            return None
        path = self._socket(self._folder, owner)
        if not path.exists():
            if (client := self._clients.pop(owner, None)) is not None:
                client.close()
            return None
        client = self._clients.get(owner)
        if client is None:
            client = CallClient(path, on_lost=lambda: PeerLost(is_gone=True))
            self._clients[owner] = client
        return client

    @staticmethod
    def _socket(folder: Path, owner: str) -> Path:
        return folder / f"{owner.rpartition('-')[2]}{_SUFFIX}"


def _loopback_scope() -> str:
    """Return a hash that is equal for all processes that share a loopback address. On Linux, the
    hash is made from the boot id of the machine and the network namespace. On other systems, it is
    made from the host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        scope = boot + os.readlink("/proc/self/ns/net")
    except OSError:
        scope = socket.gethostname()
    return sha256(scope.encode()).hexdigest()[:8]
