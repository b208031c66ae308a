"""The page ``/docs``: complete, offline, and under a strict policy."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any


async def test_page_shows_every_operation_and_type(make_app: Any) -> None:
    client = make_app().client
    document = (await client.get("/openapi.json")).json()
    page = (await client.get("/docs")).text
    ids = set(re.findall(r'<section id="([^"]+)"', page))
    operations = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert ids == operations | {f"schema-{name}" for name in document["components"]["schemas"]}
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets <= ids


async def test_page_allows_only_its_own_style_and_script(make_app: Any) -> None:
    answer = await make_app().client.get("/docs")
    page, policy = answer.text, answer.headers["content-security-policy"]
    for tag in ("style", "script"):
        ((content,),) = [re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert not re.findall(r'(?:src|href)="(?!#|openapi\.json)', page)
    assert " on" not in "".join(re.findall(r"<[a-z]+ on\w+=", page))
