"""Endpoints with which users of the web page sign in at an issuer (OpenID Connect) and out."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import RedirectResponse

from antiphon.errors import Forbidden
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.session_cookie import LOGIN_COOKIE, session_cookie, session_name
from antiphon.http.openapi.operation import operation
from antiphon.http.requests.query import read_query
from antiphon.oidc.login import Logins
from antiphon.wire.admin.sign_in import PageSession, SignedOut

#: The page, seen from the route of the callback. The app may be mounted below a path.
_PAGE = "../../"


class SignInResult(Struct, frozen=True, kw_only=True):
    """The parameters with which an issuer sends the browser back."""

    code: Annotated[str | None, Meta(description="Proof of the sign-in, for the server.")] = None
    state: Annotated[str | None, Meta(description="The value that the sign-in began with.")] = None
    error: Annotated[str | None, Meta(description="Why the issuer refused the user.")] = None
    error_description: Annotated[str | None, Meta(description="The same, in words.")] = None


class SignInRoutes:
    """The routes ``/antiphon/session``, ``/antiphon/sign-in`` and ``/antiphon/sign-out``.
    ``logins``: None if users cannot sign in."""

    def __init__(self, logins: Logins | None) -> None:
        self._logins = logins

    @operation("GET /antiphon/session", "getPageSession", security="open")
    async def session(self, request: Request) -> PageSession:
        """Return who is signed in on the web page, and where users can sign in."""
        if self._logins is None:
            return PageSession()
        issuers = self._logins.names
        try:
            identity = self._logins.identity(session_cookie(request.scope))
        except Forbidden:
            identity = None
        if identity is None:
            return PageSession(issuers=issuers)
        return PageSession(
            user=identity.name.partition("/")[2],
            tenant=identity.tenant,
            roles=tuple(sorted(identity.roles)),
            issuers=issuers,
        )

    @operation(
        "GET /antiphon/sign-in/{issuer}",
        "beginSignIn",
        media_type="",
        status=303,
        errors=(403, 503),
        security="open",
    )
    async def begin(self, request: Request) -> Reply:
        """Send the browser to the issuer's page, on which the user signs in."""
        logins, name = self._checked(), request.path_params["issuer"]
        started = await logins.begin(name)
        reply = RedirectResponse(started.url, status_code=303)
        reply.set_cookie(
            LOGIN_COOKIE,
            started.cookie,
            max_age=600,
            secure=logins.is_secure(name),
            httponly=True,
            samesite="lax",
        )
        return reply

    @operation(
        "GET /antiphon/sign-in/callback",
        "finishSignIn",
        query=SignInResult,
        media_type="",
        status=303,
        errors=(400, 401, 403, 503),
        security="open",
    )
    async def finish(self, request: Request) -> Reply:
        """Finish a sign-in: the issuer has sent the browser back."""
        logins = self._checked()
        sent = asdict(read_query(request, SignInResult))
        name, cookie, age_s = await logins.finish(sent, request.cookies.get(LOGIN_COOKIE))
        is_secure = logins.is_secure(name)
        reply = RedirectResponse(_PAGE, status_code=303)
        reply.delete_cookie(LOGIN_COOKIE, secure=is_secure, httponly=True, samesite="lax")
        reply.set_cookie(
            session_name(is_secure),
            cookie,
            max_age=age_s,
            secure=is_secure,
            httponly=True,
            samesite="lax",
        )
        return reply

    @operation(
        "POST /antiphon/sign-out", "signOut", answer=SignedOut, errors=(403,), security="open"
    )
    async def end(self, request: Request) -> Reply:
        """End the session of the web page."""
        logins = self._checked()
        url = await logins.sign_out_url(session_cookie(request.scope))
        reply = json_reply(SignedOut(end_session_url=url))
        for is_secure in (False, True):
            reply.delete_cookie(
                session_name(is_secure), secure=is_secure, httponly=True, samesite="lax"
            )
        return reply

    def _checked(self) -> Logins:
        """Return the object that signs users in. Raises ``Forbidden`` if there is none."""
        if self._logins is None:
            raise Forbidden("Users cannot sign in at this server: its settings name no issuer.")
        return self._logins
