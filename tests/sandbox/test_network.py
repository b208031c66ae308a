"""The network of real boxes: only through the proxy, with secrets that stay outside."""

from __future__ import annotations

import asyncio

import pytest

from tests.sandbox.egress.servers import SECRET, world
from tests.sandbox.real_sandboxes import open_box

pytestmark = pytest.mark.e2e

#: Seconds. Beside other work, code in a box gets little processor time.
WAIT_S = 280
FETCH = """import os, urllib.request
def fetch(url):
    headers = {"Authorization": "Bearer " + os.environ["API_KEY"]}
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=280).read()
"""


async def test_code_reaches_allowed_domains_without_knowing_secrets() -> None:
    async with world() as there, open_box() as box, asyncio.timeout(6 * WAIT_S):
        await box.open_network(there.proxy)
        code = f"{FETCH}(fetch('https://api.test/x'), fetch('http://files.test/'))"
        outcome = await box.python(code, timeout_s=WAIT_S, max_chars=4000)
        assert outcome.output == "(b'hello from outside', b'hello from outside')\n", outcome
        assert b"Authorization: Bearer real-secret" in there.received[0]
        refused = await box.python("fetch('https://other.test/')", timeout_s=WAIT_S, max_chars=4000)
        assert refused.end_reason == "raised" and "403" in refused.output
        direct = "import socket\nsocket.create_connection(('127.0.0.2', 80), 5)"
        outcome = await box.python(direct, timeout_s=WAIT_S, max_chars=4000)
        assert outcome.end_reason == "raised"
        look = f"env; grep -r {SECRET.value} /run /tmp /mnt /proc/*/environ 2>/dev/null"
        command = await box.command(look, timeout_s=WAIT_S, max_chars=9000)
        assert "API_KEY=secret_placeholder" in command.output
        assert SECRET.value not in command.output.replace(look, "")
        # Code that kills the forwarder has a network again in its next call.
        await box.command("kill -9 -1", timeout_s=WAIT_S, max_chars=100)
        await box.python("0", timeout_s=WAIT_S, max_chars=99)  # finds its interpreter dead
        outcome = await box.python(
            f"{FETCH}fetch('https://api.test/')", timeout_s=WAIT_S, max_chars=99
        )
        assert outcome.output == "b'hello from outside'\n", outcome
