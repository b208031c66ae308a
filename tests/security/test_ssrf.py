"""Webhooks are never sent inwards, however the address is written. Nothing here is dialled but
loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.errors import SetupError
from antiphon.security.ssrf import AddressNotAllowed, is_public, socket_factory
from antiphon.webhooks.deliver import WebhookSender, WebhookTarget, check_url
from tests.webhooks.receiver import SECRETS


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0",
     "100.64.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::",
     "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "ff0e::1",
     "2001:db8::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:0:7f00:1", "64:ff9b::7f00:1",
     "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:1::80ff:fffe", "127.1",
     "2130706433", "0x7f.1", "localhost", "nonsense", ""],
)  # fmt: skip
def test_inner_addresses_are_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["93.184.215.14", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e",
     "2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
)  # fmt: skip
def test_outer_addresses_are_known(address: str) -> None:
    assert is_public(address)


def test_a_socket_is_made_for_an_outer_address_only() -> None:
    family, kind = socket.AF_INET, socket.SOCK_STREAM
    socket_factory(private=False)(
        (family, kind, 6, "", ("93.184.215.14", 443))
    ).close()  # not connected
    with pytest.raises(AddressNotAllowed):
        socket_factory(private=False)((family, kind, 6, "", ("127.0.0.1", 443)))
    socket_factory(private=True)((family, kind, 6, "", ("127.0.0.1", 443))).close()


class Names:
    """A resolver that gives these addresses, in turn, whatever the name; the last stays."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        self.asked += 1
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [
            {"hostname": host, "host": each, "port": port, "proto": 6, "flags": 0,
             "family": socket.AF_INET6 if ":" in each else socket.AF_INET}
            for each in found
        ]  # fmt: skip

    async def close(self) -> None: ...


@asynccontextmanager
async def bell() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A port of loopback, and whether anybody connected to it."""
    rung = asyncio.Event()

    def ring(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rung.set()
        writer.close()

    server = await asyncio.start_server(ring, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], rung
    finally:
        server.close()


@pytest.mark.requirement("API-WEBHOOKS-INNER")
@pytest.mark.parametrize(
    "found", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["::1", "127.0.0.1"], ["::ffff:127.0.0.1"]]
)
async def test_a_name_that_means_an_inner_address_is_never_dialled(found: list[str]) -> None:
    async with bell() as (port, rung):
        url = f"https://hook.example:{port}/x"
        target = WebhookTarget.parse(url, SECRETS)
        sender = WebhookSender.open(resolver=Names(found), timeout_s=5)
        with capture_logs() as logs:
            assert await sender.send(target, "evt_1", b"{}", 1) == 0
        await sender.close()
        assert [(each["event"], each["error"]) for each in logs] == [
            ("webhook not sent", "not a public address")
        ]
        assert not rung.is_set()


@pytest.mark.parametrize("host", ["localhost", "127。0。0。1", "①②⑦.0.0.1", "127.1", "2130706433"])
async def test_an_address_in_disguise_is_never_dialled(host: str) -> None:
    async with bell() as (port, rung):
        url = f"https://{host}:{port}/x"
        target = WebhookTarget.parse(url, SECRETS)
        sender = WebhookSender.open(resolver=Names(["127.0.0.1"]), timeout_s=5)
        assert await sender.send(target, "evt_1", b"{}", 1) == 0
        await sender.close()
        assert not rung.is_set()


async def test_a_name_is_asked_for_anew_each_time_and_the_answer_is_what_counts() -> None:
    """What a name meant when it was checked is nothing to what it means when it is dialled."""
    async with bell() as (port, rung):
        names = Names(["127.0.0.1"])
        target = WebhookTarget.parse(f"https://hook.example:{port}/", SECRETS)
        sender = WebhookSender.open(resolver=names, timeout_s=5)
        for _ in range(2):
            assert await sender.send(target, "evt_1", b"{}", 1) == 0
        await sender.close()
        assert (names.asked, rung.is_set()) == (2, False)


@pytest.mark.parametrize(
    "url",
    ["http://hook.example", "https://127.0.0.1/x", "https://[::1]/", "https://u:p@hook.example",
     "https://@hook.example", "ftp://hook.example", "hook.example", "https:///x", "https://[::1",
     "https://hook.example:99999/", "https://hook.example:0/", ""],
)  # fmt: skip
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match=r"webhook\.url"):
        check_url(url, private=False)


def test_what_the_operator_allows_is_allowed() -> None:
    for url in ("http://127.0.0.1:8080/x", "https://10.0.0.1/", "http://hooks.internal/"):
        check_url(url, private=True)
    check_url("https://hook.example/x?y=1", private=False)
