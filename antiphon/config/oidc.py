"""Settings of one issuer (OpenID Connect) whose users may use the server."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.wire.admin.client_limits import ClientLimits

from .options import declare

_Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"
]


class OidcGrant(ClientLimits, frozen=True, kw_only=True):
    """What some users of an issuer may do, and the limits of each user: ``[[oidc.NAME.grants]]``.

    The first grant that matches the claims of a user counts. Users whom no grant matches may not
    use the server.
    """

    claim: Annotated[
        str,
        declare(
            "Path of a claim, such as `groups` or `resource_access.antiphon.roles`. Empty: the "
            "grant matches every user."
        ),
    ] = ""
    values: Annotated[
        tuple[str, ...],
        declare(
            "The grant matches if the claim is one of these values, or a list with one of them. "
            "Empty: any value."
        ),
    ] = ()
    tenant: Annotated[str, declare("Tenant of these users.")] = "default"
    tenant_claim: Annotated[
        str,
        declare(
            "Path of the claim that contains the tenant, in place of `tenant`. Name only a claim "
            "that users cannot change themselves."
        ),
    ] = ""
    role: Annotated[
        Literal["user", "operator", "auditor", "prompt_editor"],
        declare(
            "Role of these users, as the settings `operators`, `auditors` and `prompt_editors` "
            "give it to API keys. `user`: no role."
        ),
    ] = "user"


class OidcIssuer(Struct, frozen=True, kw_only=True):
    """An issuer of OpenID Connect: ``[oidc.NAME]``.

    Users of the issuer send its access tokens in place of an API key. With ``client_id``, they can
    also sign in on the web page. In limits, logs and usage statistics, a user is called NAME/USER.
    """

    issuer: Annotated[
        str,
        declare("The issuer's identifier, a URL, exactly as it stands in the claim `iss`."),
    ]
    audience: Annotated[str, declare("The audience that an access token must have (claim `aud`).")]
    grants: Annotated[
        tuple[OidcGrant, ...],
        declare(
            "What the issuer's users may do: `[[oidc.NAME.grants]]` tables.",
            kind="tables [[oidc.NAME.grants]]",
        ),
    ]
    keys_url: Annotated[
        str,
        declare("URL of the issuer's key set (JWKS). Empty: as its discovery document says."),
    ] = ""
    algorithms: Annotated[tuple[_Algorithm, ...], declare("Accepted signature algorithms.")] = (
        "RS256",
        "ES256",
        "Ed25519",
    )
    user_claim: Annotated[
        str,
        declare(
            "Path of the claim that names the user. Name only a claim that is unique and that "
            "users cannot change themselves."
        ),
    ] = "sub"
    leeway_s: Annotated[
        float,
        declare("Seconds by which the issuer's clock may differ from the server's.", ge=0, le=600),
    ] = 60
    client_id: Annotated[
        str,
        declare("The web page's id as a client of the issuer. Empty: nobody signs in on the page."),
    ] = ""
    client_secret: Annotated[
        str,
        declare(
            "The web page's secret at the issuer. Empty: the page is a public client.",
            secret=True,
        ),
    ] = ""
    redirect_url: Annotated[
        str,
        declare(
            "Address to which the issuer sends the browser back: the server's public address with "
            "the path `/antiphon/sign-in/callback`. Required with `client_id`."
        ),
    ] = ""
    scopes: Annotated[
        tuple[str, ...], declare("Scopes that the page asks for when a user signs in.")
    ] = ("openid", "profile")
    session_s: Annotated[
        int,
        declare("Seconds after which a user must sign in on the page again.", ge=60),
    ] = 8 * 3600


def check_issuer(name: str, issuer: OidcIssuer) -> None:
    """Raise ``SetupError`` if the settings of an issuer contradict each other."""
    where = f"oidc.{name}"
    if "/" in name:
        raise SetupError(f"{where}: the name of an issuer may not contain a slash")
    if not issuer.issuer.startswith(("https://", "http://")):
        raise SetupError(f"{where}.issuer must be a URL, not {issuer.issuer!r}")
    if not issuer.audience or not issuer.grants:
        field = "audience" if not issuer.audience else "grants"
        raise SetupError(f"{where}.{field} must not be empty")
    if bool(issuer.client_id) != bool(issuer.redirect_url):
        raise SetupError(f"{where}: set both client_id and redirect_url, or neither")
