"""An identity provider in this process: it signs tokens and answers what the server fetches."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import joserfc.jwk as jwk
from joserfc import jws

from antiphon.oidc import SignIn
from antiphon.oidc.claims import Grant, IssuerRules
from antiphon.oidc.login import LoginClient, Logins
from antiphon.oidc.provider import IssuerAddress, Provider
from antiphon.oidc.tokens import AccessTokens, Issuer
from antiphon.security.encryption import EncryptionKey, Encryptor

ISSUER = "https://login.test/realm"
NOW = 1_800_000_000.0


@cache
def rsa_key(id: str, number: int = 0) -> Any:
    """Return a private key. Another ``number`` is another key with the same id."""
    return jwk.RSAKey.generate_key(2048, {"kid": id})


class FakeIssuer:
    """``keys``: key id → private key. ``is_down``: whether requests to it fail."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": rsa_key("one")}
        self.is_down = False
        self.requests: list[str] = []
        self.discovered = ISSUER
        #: Code → claims of the ID token, and the challenge of the sign-in.
        self.codes: dict[str, tuple[dict[str, Any], str]] = {}

    async def fetch(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        self.requests.append(url)
        if self.is_down:
            raise OSError("the issuer is down")
        match url.removeprefix(ISSUER):
            case "/.well-known/openid-configuration":
                return json.dumps(
                    {
                        "issuer": self.discovered,
                        "jwks_uri": f"{ISSUER}/keys",
                        "authorization_endpoint": f"{ISSUER}/authorize",
                        "token_endpoint": f"{ISSUER}/token",
                        "end_session_endpoint": f"{ISSUER}/end",
                    }
                ).encode()
            case "/keys":
                return json.dumps({"keys": [key.as_dict() for key in self.keys.values()]}).encode()
            case "/token":
                return self._exchange({k: v[0] for k, v in parse_qs(body.decode()).items()})
        raise OSError("the answer has the status 404")

    def _exchange(self, form: Mapping[str, str]) -> bytes:
        claims, challenge = self.codes.pop(form["code"])
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if _encode(digest).decode() != challenge:
            raise OSError("the answer has the status 400")
        return json.dumps({"id_token": self.sign(claims), "access_token": "opaque"}).encode()

    def sign(
        self,
        claims: Mapping[str, Any] | bytes,
        *,
        key: str = "one",
        algorithm: str = "RS256",
        header: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a token. ``header``: members of its header; None removes one."""
        head = {"alg": algorithm, "kid": key, "typ": "at+jwt", **(header or {})}
        payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
        present = {name: value for name, value in head.items() if value is not None}
        signed = b".".join(map(_encode, (json.dumps(present).encode(), payload)))
        signer = jws.JWSRegistry(algorithms=[algorithm]).get_alg(algorithm)
        return b".".join((signed, _encode(signer.sign(signed, self.keys[key])))).decode()

    def sign_in(self, url: str, claims: Mapping[str, Any]) -> dict[str, str]:
        """Let a user sign in on the issuer's page at this address. Returns the parameters with
        which the browser is sent back."""
        query = {name: value[0] for name, value in parse_qs(urlsplit(url).query).items()}
        assert query["code_challenge_method"] == "S256"
        code = f"code for {query['state']}"
        self.codes[code] = ({**claims, "nonce": query["nonce"]}, query["code_challenge"])
        return {"code": code, "state": query["state"]}


def _encode(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def access_claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a valid access token. A change to None removes the claim."""
    claims = {
        "iss": ISSUER,
        "aud": "antiphon",
        "sub": "ann",
        "iat": NOW - 10,
        "exp": NOW + 300,
        "groups": ["staff", "ml"],
        **changes,
    }
    return {name: value for name, value in claims.items() if value is not None}


def fake_sign_in(fake: FakeIssuer, url: str, *, clock: Callable[[], float]) -> SignIn:
    """Return the sign-in of a server whose page has this address."""
    issuer = Issuer(
        provider=Provider(IssuerAddress(issuer=ISSUER), fake.fetch, timer=clock),
        rules=IssuerRules(
            name="corp",
            grants=(
                Grant(claim="groups", values=("audit",), role="auditor"),
                Grant(claim="groups", values=("ml",), tenant="research"),
            ),
        ),
        audience="antiphon",
        algorithms=("RS256",),
    )
    page = LoginClient(
        issuer=issuer,
        id="page",
        secret="hush",
        redirect_url=f"{url}/antiphon/sign-in/callback",
    )
    seal = Encryptor([EncryptionKey.generate()])
    logins = Logins([page], fetch=fake.fetch, encryptor=seal, clock=clock)
    return SignIn(AccessTokens([issuer], clock=clock), logins)
