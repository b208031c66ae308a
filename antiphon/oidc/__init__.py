"""Sign-in with OpenID Connect: access tokens for the API, and browser sessions for the page.

An identity provider, named *issuer* in the standards, signs tokens with facts about a person or a
program (*claims*). ``claims`` maps them to a tenant, roles and limits. ``provider`` gets the
issuer's addresses and signing keys, ``tokens`` verifies the tokens of API requests, and ``login``
performs the sign-in of the web page.
"""

from __future__ import annotations

from msgspec import Struct

from .login import Logins
from .tokens import AccessTokens


class SignIn(Struct, frozen=True):
    """How users sign in: with the access tokens of API requests, and on the web page."""

    tokens: AccessTokens
    logins: Logins
