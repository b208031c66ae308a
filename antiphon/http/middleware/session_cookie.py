"""The cookies of the web page's sign-in, and the check of requests that have one."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

from starlette.types import Scope

from antiphon.errors import InvalidRequest

from .request_context import header

#: The cookie of a sign-in that has begun.
LOGIN_COOKIE = "antiphon-sign-in"
_SESSION = "antiphon-session"
_READING = ("GET", "HEAD")


def session_name(is_secure: bool) -> str:
    """Return the name of the session's cookie. Browsers accept a cookie whose name begins with
    ``__Host-`` only from this host and over HTTPS."""
    return f"__Host-{_SESSION}" if is_secure else _SESSION


def session_cookie(scope: Scope) -> str | None:
    """Return the session's cookie in a request, or None if it has none."""
    sent = header(scope, b"cookie")
    if sent is None or _SESSION.encode() not in sent:
        return None
    try:
        cookies = SimpleCookie(sent.decode("latin-1"))
    except CookieError:
        return None
    for is_secure in (True, False):
        if (cookie := cookies.get(session_name(is_secure))) is not None:
            return cookie.value
    return None


def reject_other_origins(scope: Scope) -> None:
    """Raise ``InvalidRequest`` for a request that a page of another origin has sent with the cookie
    of a session (CSRF). Requests that only read are accepted, because the other page cannot see the
    response. Browsers send no preflight for WebSockets, so these are checked too."""
    if scope["type"] == "http" and scope["method"] in _READING:
        return
    origin = header(scope, b"origin")
    if origin is not None and origin.partition(b"://")[2] != header(scope, b"host"):
        raise InvalidRequest(
            "Pages of other origins may not use the session of this page.", code="invalid_origin"
        )
