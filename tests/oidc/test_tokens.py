"""Access tokens: which are accepted, which are refused, and how keys change."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import joserfc.jwk as jwk
import pytest
from msgspec.structs import replace

from antiphon.errors import Forbidden, Unauthorized, Unavailable
from antiphon.oidc.claims import Grant, IssuerRules
from antiphon.oidc.provider import IssuerAddress, Provider
from antiphon.oidc.tokens import AccessTokens, Issuer, looks_like_token
from antiphon.wire.admin.client_limits import ClientLimits
from tests.oidc.issuer import ISSUER, NOW, FakeIssuer, access_claims, rsa_key

GRANTS = (
    Grant(claim="groups", values=("admins",), role="operator"),
    Grant(claim="groups", values=("ml",), tenant="research", limits=ClientLimits(tools=())),
    Grant(claim="org.id", tenant_claim="org.id"),
)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Setup:
    def __init__(self, *algorithms: str, grants: tuple[Grant, ...] = GRANTS) -> None:
        self.fake, self.clock = FakeIssuer(), Clock()
        self.issuer = Issuer(
            provider=Provider(IssuerAddress(issuer=ISSUER), self.fake.fetch, timer=self.clock),
            rules=IssuerRules(name="corp", grants=grants),
            audience="antiphon",
            algorithms=algorithms or ("RS256", "ES256", "Ed25519"),
        )
        self.tokens = AccessTokens([self.issuer], clock=self.clock)

    async def identify(self, token: str) -> Any:
        return await self.tokens.identify(token.encode())


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_claims_decide_tenant_role_and_limits(setup: Setup) -> None:
    ann = await setup.identify(setup.fake.sign(access_claims()))
    assert (ann.name, ann.tenant, ann.roles) == ("corp/ann", "research", frozenset())
    assert ann.limits == ClientLimits(tools=())
    root = await setup.identify(setup.fake.sign(access_claims(sub="root", groups=["admins"])))
    assert (root.tenant, root.roles) == ("default", {"operator"})
    nested = access_claims(groups=None, org={"id": "acme"})
    assert (await setup.identify(setup.fake.sign(nested))).tenant == "acme"


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "Ed25519"])
async def test_pinned_algorithms_are_accepted(algorithm: str) -> None:
    setup = Setup(algorithm)
    setup.fake.keys["one"] = {
        "RS256": lambda: rsa_key("one"),
        "PS256": lambda: rsa_key("one"),
        "ES256": lambda: jwk.ECKey.generate_key("P-256", {"kid": "one"}),
        "Ed25519": lambda: jwk.OKPKey.generate_key("Ed25519", {"kid": "one"}),
    }[algorithm]()
    token = setup.fake.sign(access_claims(), algorithm=algorithm)
    assert (await setup.identify(token)).name == "corp/ann"


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["other", "antiphon"]},
        {"exp": NOW - 59},
        {"nbf": NOW + 59, "iat": NOW + 59},
        {"iat": None},
        {"exp": NOW + 0.5},
        {"extra": {"deep": [1, None, "x"]}},
    ],
)
async def test_valid_claims(setup: Setup, changes: dict[str, Any]) -> None:
    assert await setup.identify(setup.fake.sign(access_claims(**changes)))


@pytest.mark.parametrize("header", [{"typ": None}, {"typ": "JWT"}, {"x5t": "abc"}, {"kid": None}])
async def test_valid_headers(setup: Setup, header: dict[str, Any]) -> None:
    assert await setup.identify(setup.fake.sign(access_claims(), header=header))


def _encoded(value: object) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _unsigned(header: object, claims: object) -> str:
    return f"{_encoded(header)}.{_encoded(claims)}."


def _with_other_key(fake: FakeIssuer, **header: Any) -> str:
    other = FakeIssuer()
    other.keys = {"one": rsa_key("one", 1)}
    return other.sign(access_claims(), header=header)


def _as_hmac(fake: FakeIssuer) -> str:
    """Sign with the issuer's public key as if it were a symmetric secret."""
    secret = fake.keys["one"].as_pem(private=False)
    header = {"alg": "HS256", "kid": "one", "typ": "at+jwt"}
    signed = f"{_encoded(header)}.{_encoded(access_claims())}"
    return f"{signed}.{_encoded(hmac.digest(secret, signed.encode(), 'sha256'))}"


def _tampered(token: str, **changes: Any) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{_encoded(access_claims(**changes))}.{signature}"


BAD_TOKENS: dict[str, Callable[[FakeIssuer], str]] = {
    "expired": lambda fake: fake.sign(access_claims(exp=NOW - 61)),
    "long expired": lambda fake: fake.sign(access_claims(exp=1)),
    "without expiry": lambda fake: fake.sign(access_claims(exp=None)),
    "expiry is text": lambda fake: fake.sign(access_claims(exp="2030-01-01")),
    "expiry is true": lambda fake: fake.sign(access_claims(exp=True)),
    "expiry is a list": lambda fake: fake.sign(access_claims(exp=[NOW + 300])),
    "expiry is not a number": lambda fake: fake.sign(
        json.dumps(access_claims()).replace(str(NOW + 300), "NaN").encode()
    ),
    "expiry is negative": lambda fake: fake.sign(access_claims(exp=-1)),
    "not valid yet": lambda fake: fake.sign(access_claims(nbf=NOW + 61)),
    "issued in the future": lambda fake: fake.sign(access_claims(iat=NOW + 3600)),
    "start is text": lambda fake: fake.sign(access_claims(nbf="now")),
    "other issuer": lambda fake: fake.sign(access_claims(iss="https://evil.test")),
    "issuer with a slash": lambda fake: fake.sign(access_claims(iss=f"{ISSUER}/")),
    "issuer is a list": lambda fake: fake.sign(access_claims(iss=[ISSUER])),
    "without issuer": lambda fake: fake.sign(access_claims(iss=None)),
    "other audience": lambda fake: fake.sign(access_claims(aud="other")),
    "audience contains ours": lambda fake: fake.sign(access_claims(aud="antiphon-admin")),
    "audience is an object": lambda fake: fake.sign(access_claims(aud={"antiphon": 1})),
    "other audiences": lambda fake: fake.sign(access_claims(aud=["a", "b"])),
    "without audience": lambda fake: fake.sign(access_claims(aud=None)),
    "no algorithm": lambda fake: _unsigned({"alg": "none", "typ": "JWT"}, access_claims()),
    "algorithm None": lambda fake: _unsigned({"alg": "None"}, access_claims()),
    "without algorithm": lambda fake: _unsigned({"kid": "one"}, access_claims()),
    "algorithm is null": lambda fake: _unsigned({"alg": None}, access_claims()),
    "public key as secret": _as_hmac,
    "algorithm not pinned": lambda fake: fake.sign(access_claims(), algorithm="RS512"),
    "algorithm of another key type": lambda fake: fake.sign(access_claims()).replace(
        _encoded({"alg": "RS256", "kid": "one", "typ": "at+jwt"}).rstrip("="),
        _encoded({"alg": "ES256", "kid": "one", "typ": "at+jwt"}),
    ),
    "other key": _with_other_key,
    "unknown key id": lambda fake: fake.sign(access_claims(), header={"kid": "two"}),
    "key id is a path": lambda fake: fake.sign(access_claims(), header={"kid": "../one"}),
    "key id is a number": lambda fake: fake.sign(access_claims(), header={"kid": 1}),
    "key in the header": lambda fake: _with_other_key(
        fake, jwk=rsa_key("one", 1).as_dict(private=False)
    ),
    "key address in the header": lambda fake: _with_other_key(fake, jku="https://evil.test/keys"),
    "certificate in the header": lambda fake: _with_other_key(fake, x5c=["MIIB"]),
    "critical extension": lambda fake: fake.sign(
        access_claims(), header={"crit": ["x"], "x": True}
    ),
    "logout token": lambda fake: fake.sign(access_claims(), header={"typ": "logout+jwt"}),
    "proof of possession": lambda fake: fake.sign(access_claims(), header={"typ": "dpop+jwt"}),
    "ID token": lambda fake: fake.sign(access_claims(nonce="n")),
    "changed subject": lambda fake: _tampered(fake.sign(access_claims()), sub="root"),
    "changed groups": lambda fake: _tampered(fake.sign(access_claims()), groups=["admins"]),
    "without signature": lambda fake: fake.sign(access_claims()).rpartition(".")[0] + ".",
    "cut signature": lambda fake: fake.sign(access_claims())[:-8],
    "damaged header": lambda fake: f"eyJ!.{_encoded(access_claims())}.c2ln",
    "header is a list": lambda fake: f"{_encoded(['eyJ'])}.{_encoded(access_claims())}.c2ln",
    "claims are a list": lambda fake: fake.sign(b"[]"),
    "claims are nested deeply": lambda fake: fake.sign(b'{"iss":' + b"[" * 5000),
    "claims are not UTF-8": lambda fake: fake.sign(b'{"iss":"\xff"}'),
    "too long": lambda fake: fake.sign(access_claims(groups=["x" * 20_000])),
    "two tokens": lambda fake: ".".join(fake.sign(access_claims()).split(".") * 2),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_bad_tokens_are_refused(setup: Setup, name: str) -> None:
    with pytest.raises(Unauthorized):
        await setup.identify(BAD_TOKENS[name](setup.fake))


@pytest.mark.parametrize(
    "changes",
    [{"groups": ["guests"]}, {"groups": None}, {"sub": ""}, {"sub": 7}, {"sub": "a\nb"}],
)
async def test_users_without_a_grant_are_forbidden(setup: Setup, changes: dict[str, Any]) -> None:
    with pytest.raises(Forbidden) as caught:
        await setup.identify(setup.fake.sign(access_claims(**changes)))
    assert caught.value.code == "no_grant"


async def test_known_token_is_not_verified_again_until_it_expires(setup: Setup) -> None:
    token = setup.fake.sign(access_claims())
    await setup.identify(token)
    requests = len(setup.fake.requests)
    setup.fake.is_down = True
    assert (await setup.identify(token)).name == "corp/ann"
    assert len(setup.fake.requests) == requests
    setup.clock.now += 400
    with pytest.raises(Unauthorized) as caught:
        await setup.identify(token)
    assert caught.value.code == "token_expired"


async def test_keys_rotate_without_a_restart(setup: Setup) -> None:
    old = setup.fake.sign(access_claims())
    await setup.identify(old)
    setup.fake.keys["two"] = rsa_key("two")
    new = setup.fake.sign(access_claims(sub="bob"), key="two")
    setup.clock.now += 11
    assert (await setup.identify(new)).name == "corp/bob"
    del setup.fake.keys["one"]
    setup.clock.now += 3601
    with pytest.raises(Unauthorized):
        await setup.identify(
            setup.fake.sign(access_claims(exp=NOW + 9999), key="two", header={"kid": "one"})
        )


async def test_unknown_key_ids_read_the_keys_rarely(setup: Setup) -> None:
    await setup.identify(setup.fake.sign(access_claims()))
    for number in range(20):
        token = setup.fake.sign(access_claims(), header={"kid": f"key {number}"})
        with pytest.raises(Unauthorized):
            await setup.identify(token)
    assert setup.fake.requests.count(f"{ISSUER}/keys") == 1


async def test_keys_stay_while_the_issuer_is_down(setup: Setup) -> None:
    await setup.identify(setup.fake.sign(access_claims()))
    setup.fake.is_down = True
    setup.clock.now += 3700
    claims = access_claims(exp=setup.clock.now + 300)
    assert await setup.identify(setup.fake.sign(claims))


async def test_issuer_that_never_answered_is_unavailable(setup: Setup) -> None:
    setup.fake.is_down = True
    token = setup.fake.sign(access_claims())
    with pytest.raises(Unavailable):
        await setup.identify(token)
    setup.fake.is_down, setup.clock.now = False, NOW + 11
    assert await setup.identify(token)


async def test_document_of_another_issuer_is_not_used(setup: Setup) -> None:
    setup.fake.discovered = "https://evil.test"
    with pytest.raises(Unavailable):
        await setup.identify(setup.fake.sign(access_claims()))


async def test_unusable_keys_of_a_set_are_left_out(setup: Setup) -> None:
    secret = jwk.OctKey.generate_key(256, {"kid": "secret"})
    setup.fake.keys |= {"secret": secret}
    setup.issuer = replace(setup.issuer, algorithms=("RS256", "HS256"))
    tokens = AccessTokens([setup.issuer], clock=setup.clock)
    forged = setup.fake.sign(access_claims(), key="secret", algorithm="HS256")
    with pytest.raises(Unauthorized):
        await tokens.identify(forged.encode())
    assert await tokens.identify(setup.fake.sign(access_claims()).encode())


def test_tokens_are_told_from_api_keys() -> None:
    assert looks_like_token(b"eyJhbGciOiJSUzI1NiJ9.e30.c2ln")
    assert not looks_like_token(b"sk-eyJ.a.b")
    assert not looks_like_token(b"eyJ")
