"""The server's settings over HTTP: for operators only."""

from __future__ import annotations

import hashlib
from typing import Any

from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.wire.admin.server_info import SettingEntry, SettingList

PORT = SettingEntry(name="port", value="9000", origin="--port", group="Server", help="Port.")
SETTINGS = SettingList(data=(PORT,))


def key(name: str) -> AuthKey:
    return AuthKey(name=name, tenant="t", sha256=hashlib.sha256(name.encode()).hexdigest())


async def test_operators_see_the_settings(make_app: Any) -> None:
    access = AuthConfig(keys=(key("ann"), key("bob")), roles={"operator": ("ann",)})
    client = make_app(access=access, settings=SETTINGS).client
    for name, status in (("ann", 200), ("bob", 403)):
        headers = {"authorization": f"Bearer {name}"}
        answer = await client.get("/antiphon/settings", headers=headers)
        assert answer.status_code == status
    assert (await client.get("/antiphon/settings")).status_code == 401


async def test_without_keys_only_this_machine_sees_the_settings(make_app: Any) -> None:
    client = make_app(settings=SETTINGS).client
    answer = await client.get("/antiphon/settings")
    assert answer.json()["data"][0]["origin"] == "--port"
    forwarded = {"x-forwarded-for": "192.0.2.1"}
    assert (await client.get("/antiphon/settings", headers=forwarded)).status_code == 403
