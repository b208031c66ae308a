"""Who uses the web page, and where its users can sign in."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class PageSession(Struct, frozen=True, kw_only=True):
    """The session of the web page. ``user``: name of the user who is signed in; None if nobody is.
    ``issuers``: the names of the issuers at which users can sign in."""

    object: Literal["antiphon.session"] = "antiphon.session"
    user: str | None = None
    tenant: str | None = None
    roles: tuple[str, ...] = ()
    issuers: tuple[str, ...] = ()


class SignedOut(Struct, frozen=True, kw_only=True):
    """The session has ended. ``end_session_url``: the issuer's page on which the user can sign out
    at the issuer, too; None if there is none."""

    object: Literal["antiphon.session.ended"] = "antiphon.session.ended"
    end_session_url: str | None = None
