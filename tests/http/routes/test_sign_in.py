"""Users of an issuer at the API and on the web page, through the app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from antiphon.http.middleware.auth import AuthConfig
from tests.oidc.issuer import ISSUER, NOW, FakeIssuer, access_claims, fake_sign_in

PAGE_CLAIMS = access_claims(aud="page", name="Ann")


class Site:
    """An app whose users sign in at a fake issuer. ``browser`` keeps cookies."""

    def __init__(self, make_app: Callable[..., Any], url: str = "http://localhost") -> None:
        self.fake, self.now = FakeIssuer(), NOW
        sign_in = fake_sign_in(self.fake, url, clock=lambda: self.now)
        app = make_app(access=AuthConfig(page=True, issuers=("corp",)), sign_in=sign_in)
        self.browser: httpx.AsyncClient = app.client
        self.browser.base_url = httpx.URL(url)

    async def sign_in(self, **claims: Any) -> httpx.Response:
        begun = await self.browser.get("/antiphon/sign-in/corp")
        assert begun.status_code == 303, begun.text
        query = self.fake.sign_in(begun.headers["location"], {**PAGE_CLAIMS, **claims})
        return await self.browser.get("/antiphon/sign-in/callback", params=query)


@pytest.fixture
def site(make_app: Callable[..., Any]) -> Site:
    return Site(make_app)


async def test_access_token_takes_the_place_of_a_key(site: Site) -> None:
    headers = {"authorization": f"Bearer {site.fake.sign(access_claims())}"}
    assert (await site.browser.get("/v1/models", headers=headers)).status_code == 200
    refused = await site.browser.get("/v1/models")
    assert refused.json()["error"]["code"] == "invalid_api_key"
    headers = {"authorization": f"Bearer {site.fake.sign(access_claims(aud='x'))}"}
    refused = await site.browser.get("/v1/models", headers=headers)
    assert refused.status_code == 401
    assert refused.json()["error"]["message"].endswith("it was issued for another audience.")
    headers = {"authorization": f"Bearer {site.fake.sign(access_claims(groups=[]))}"}
    assert (await site.browser.get("/v1/models", headers=headers)).status_code == 403


async def test_auditors_read_but_do_not_manage(site: Site) -> None:
    headers = {"authorization": f"Bearer {site.fake.sign(access_claims(groups=['audit']))}"}
    assert (await site.browser.get("/antiphon/audit", headers=headers)).status_code == 200
    denied = await site.browser.delete("/antiphon/tenants/a", headers=headers)
    assert denied.status_code == 403


async def test_user_signs_in_on_the_page_and_out(site: Site) -> None:
    session = (await site.browser.get("/antiphon/session")).json()
    assert session["user"] is None
    assert session["issuers"] == ["corp"]
    done = await site.sign_in()
    assert (done.status_code, done.headers["location"]) == (303, "../../")
    cookie = done.headers.get_list("set-cookie")[-1]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    session = (await site.browser.get("/antiphon/session")).json()
    assert (session["user"], session["tenant"]) == ("ann", "research")
    assert (await site.browser.get("/v1/models")).status_code == 200
    ended = await site.browser.post("/antiphon/sign-out")
    assert ended.json()["end_session_url"] == f"{ISSUER}/end"
    assert (await site.browser.get("/v1/models")).status_code == 401


async def test_cookies_are_bound_to_the_host_over_https(make_app: Callable[..., Any]) -> None:
    site = Site(make_app, "https://ai.test")
    done = await site.sign_in()
    cookie = done.headers.get_list("set-cookie")[-1]
    assert cookie.startswith("__Host-antiphon-session=")
    assert "Secure" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie
    assert (await site.browser.get("/v1/models")).status_code == 200


async def test_session_ends(site: Site) -> None:
    await site.sign_in()
    site.now += 8 * 3600
    refused = await site.browser.get("/v1/models")
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "session_expired")


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"aud": "antiphon"}, 401),
        ({"iss": "https://evil.test"}, 401),
        ({"exp": NOW - 100}, 401),
        ({"groups": ["guests"]}, 403),
    ],
)
async def test_id_tokens_are_verified(site: Site, claims: dict[str, Any], status: int) -> None:
    assert (await site.sign_in(**claims)).status_code == status
    assert (await site.browser.get("/v1/models")).status_code == 401


async def test_code_of_another_sign_in_is_refused(site: Site) -> None:
    first = await site.browser.get("/antiphon/sign-in/corp")
    query = site.fake.sign_in(first.headers["location"], PAGE_CLAIMS)
    second = await site.browser.get("/antiphon/sign-in/corp")
    refused = await site.browser.get("/antiphon/sign-in/callback", params=query)
    assert refused.json()["error"]["code"] == "sign_in_expired"
    state = site.fake.sign_in(second.headers["location"], PAGE_CLAIMS)["state"]
    mixed = await site.browser.get(
        "/antiphon/sign-in/callback", params={"code": query["code"], "state": state}
    )
    assert mixed.status_code == 401  # the PKCE verifier is that of the second sign-in


async def test_browser_without_the_cookie_cannot_finish(site: Site) -> None:
    begun = await site.browser.get("/antiphon/sign-in/corp")
    query = site.fake.sign_in(begun.headers["location"], PAGE_CLAIMS)
    site.browser.cookies.clear()
    refused = await site.browser.get("/antiphon/sign-in/callback", params=query)
    assert refused.status_code == 400


async def test_refusal_of_the_issuer_is_reported(site: Site) -> None:
    begun = await site.browser.get("/antiphon/sign-in/corp")
    state = site.fake.sign_in(begun.headers["location"], PAGE_CLAIMS)["state"]
    answer = {"state": state, "error": "access_denied", "error_description": "Not today"}
    refused = await site.browser.get("/antiphon/sign-in/callback", params=answer)
    assert (refused.status_code, "Not today" in refused.text) == (401, True)


async def test_pages_of_other_origins_cannot_use_the_session(site: Site) -> None:
    await site.sign_in()
    evil = {"origin": "http://evil.localhost"}
    body = {"model": "tiny", "input": "hi"}
    refused = await site.browser.post("/v1/responses", headers=evil, json=body)
    assert refused.json()["error"]["code"] == "invalid_origin"
    own = {"origin": "http://localhost"}
    assert (await site.browser.post("/v1/responses", headers=own, json=body)).status_code == 200


async def test_damaged_cookies_are_no_session(site: Site) -> None:
    for value in (b"x", b"", b"a.b", b'"', b"\xc3\xa9"):
        headers = {b"cookie": b"antiphon-session=" + value}
        assert (await site.browser.get("/v1/models", headers=headers)).status_code == 401


async def test_unknown_issuer_is_not_found(site: Site) -> None:
    assert (await site.browser.get("/antiphon/sign-in/other")).status_code == 404


async def test_issuer_that_is_down_is_a_503(site: Site) -> None:
    site.fake.is_down = True
    assert (await site.browser.get("/antiphon/sign-in/corp")).status_code == 503
