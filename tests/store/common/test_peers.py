"""Processes of one host that send each other messages over Unix sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from antiphon.store.common import peers
from antiphon.store.common.peers import Peers


class Process:
    """A process with a socket, and what it received."""

    def __init__(self, process_id: str) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.gone: list[str] = []
        self.peers = Peers(
            process_id,
            lambda sender, message: self.received.append((sender, message)),
            self.gone.append,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sockets"


async def opened(folder: Path, process_id: str) -> Process:
    process = Process(process_id)
    await process.peers.open(folder)
    return process


async def test_messages_arrive_in_order_on_both_sides(folder: Path) -> None:
    one, other = await opened(folder, "one"), await opened(folder, "other")
    await one.until(lambda: one.peers.is_connected("other"))
    sent = [b"%d" % number * 100 for number in range(200)]
    for message in sent:
        one.peers.send("other", message)
    other.peers.broadcast(b"to all")
    await other.until(lambda: len(other.received) == len(sent))
    await one.until(lambda: one.received == [("other", b"to all")])
    assert other.received == [("one", message) for message in sent]
    one.peers.close()
    await other.until(lambda: other.gone == ["one"])
    assert other.peers.is_alone
    other.peers.close()
    assert not list(folder.iterdir())


async def test_process_without_a_socket_here_is_not_connected(folder: Path) -> None:
    one = await opened(folder, "one")
    assert not one.peers.is_connected("other")
    one.peers.send("other", b"lost")
    one.peers.close()


async def test_sockets_of_killed_processes_are_deleted(folder: Path) -> None:
    living = await opened(folder, "living")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "dead.peer"))
    new = await opened(folder, "new")
    assert {path.name for path in folder.iterdir()} == {"living.peer", "new.peer"}
    new.peers.close()
    living.peers.close()


async def test_process_that_does_not_answer_does_not_stop_a_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_GREETING_S", 0.01)
    folder.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(folder / "stopped.peer"))
        stopped.listen()
        one = await opened(folder, "one")
        assert one.peers.is_alone
        one.peers.close()


async def test_receiver_that_does_not_read_gets_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_MAX_UNSENT_BYTES", 100_000)
    one = await opened(folder, "one")
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.connect(str(folder / "one.peer"))
        stopped.sendall(b"\0\0\0\7stopped")
        await one.until(lambda: one.peers.is_connected("stopped"))
        for _ in range(100):
            one.peers.send("stopped", b"x" * 50_000)
        one.peers.close()
        # In a thread: the loop sends the rest and closes the connection.
        pieces = iter(partial(stopped.recv, 100_000), b"")
        received = await asyncio.to_thread(lambda: sum(map(len, pieces)))
    assert received < 2_000_000, "of 5,000,000"


@pytest.mark.parametrize("fault", ["other users may enter it", "a file", "a long path"])
async def test_unusable_folder_is_an_error(folder: Path, fault: str) -> None:
    if fault == "a file":
        folder.write_text("")
    elif fault == "a long path":
        folder = folder / ("x" * 120)
    else:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
    with pytest.raises(OSError):
        await opened(folder, "one")
