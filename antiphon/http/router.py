"""Routes of endpoints, and a fast router."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from inspect import iscoroutinefunction, isroutine
from typing import Any

from starlette.requests import Request
from starlette.routing import Match, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.http.json_response import json_reply
from antiphon.http.middleware.auth import AuthConfig, check_permission
from antiphon.http.middleware.error_forms import is_messages_client
from antiphon.http.middleware.request_context import route_path
from antiphon.http.openapi.operation import Operation
from antiphon.http.unknown_urls import UnknownUrls
from antiphon.runs.request.no_storage import storage_disabled

_Handler = Callable[[Request], Awaitable[object]]


def routes_of(access: AuthConfig, *owners: object) -> list[Route]:
    """Return the routes of endpoints. ``owners``: handlers with the decorator ``operation``, ASGI
    apps that have an ``operation``, and objects whose public attributes are such handlers or apps.
    ``access`` decides which clients have the permissions that the operations need."""
    routes = [
        _route(endpoint, operation, access)
        for owner in owners
        for endpoint in _endpoints(owner)
        if isinstance(operation := getattr(endpoint, "operation", None), Operation)
    ]
    # The path of an action also matches the route of its object.
    return sorted(routes, key=lambda route: not isinstance(route, _ActionRoute))


def _endpoints(owner: object) -> Iterator[object]:
    yield owner
    for name in (*vars(type(owner)), *vars(owner)):
        if not name.startswith("_"):
            yield getattr(owner, name)


def _route(endpoint: Any, operation: Operation, access: AuthConfig) -> Route:
    method, path = operation.route.split()
    if isroutine(endpoint):
        endpoint = _HandlerApp(endpoint, operation, access)
    elif operation.permission is not None:
        raise ValueError(f"{operation.id}: only the permission of a handler is checked")
    return (_ActionRoute if operation.is_action else Route)(path, endpoint, methods=[method])


class _HandlerApp:
    """The ASGI app of a handler. What the handler returns is sent as JSON, unless it is an ASGI app
    itself. Clients of the Messages API get it in Anthropic's form."""

    def __init__(self, handler: _Handler, operation: Operation, access: AuthConfig) -> None:
        self.__wrapped__ = handler
        self.operation = operation
        self._access = access
        self._for_messages = _messages_handler(handler, operation.messages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.operation.permission is not None:
            check_permission(scope, self._access, self.operation.permission)
        request = Request(scope, receive, send)
        if self._for_messages is not None and is_messages_client(scope):
            answer = await self._for_messages(request)
        else:
            answer = await self.__wrapped__(request)
        reply: ASGIApp = answer if callable(answer) else json_reply(answer)
        await reply(scope, receive, send)


def _messages_handler(handler: _Handler, form: Callable[..., Any] | None) -> _Handler | None:
    """Return the handler for clients of the Messages API; None if it is ``handler``. ``form``: see
    ``Operation.messages``."""
    if form is None:
        return None
    if iscoroutinefunction(form):
        return partial(form, getattr(handler, "__self__", None))

    async def translated(request: Request) -> object:
        return form(await handler(request))

    return translated


class _ActionRoute(Route):
    """The route of an action: see ``Operation.is_action``."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), child_scope


class FastRouter:
    """Starlette's router with a faster lookup: it finds routes without path parameters in a
    dictionary, and compares other paths only with the routes that have the same two first segments.

    Starlette's own router compares a path with the pattern of each route in turn. ``routes``: all
    routes. ``refused``: starts of paths at which nothing may be created.
    """

    def __init__(
        self, routes: Sequence[Route | WebSocketRoute], refused: tuple[str, ...] = ()
    ) -> None:
        self.routes = routes
        self._refused = refused
        self._unknown_urls = UnknownUrls(route.path for route in routes)
        self._fixed: dict[tuple[str, str], Route] = {}
        groups: dict[str, list[Route | WebSocketRoute]] = {}
        for route in routes:
            groups[_first_segments(route.path)] = []
            if isinstance(route, Route) and not route.param_convertors:
                for method in route.methods or ():
                    self._fixed.setdefault((method, route.path), route)
        # A route whose first segments have a parameter can match the paths of each group.
        for route in routes:
            name = _first_segments(route.path)
            for group in groups.values() if "{" in name else (groups[name],):
                group.append(route)
        self._groups = {name: self._router(group) for name, group in groups.items()}
        self._others = self._router(
            [route for route in routes if "{" in _first_segments(route.path)]
        )

    def _router(self, routes: Sequence[Route | WebSocketRoute]) -> Router:
        return Router(routes, redirect_slashes=False, default=self._refuse)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise self._unknown_urls.error(scope.get("method", "WEBSOCKET"), scope["path"])

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = route_path(scope)
        if self._refused and scope.get("method") == "POST" and path.startswith(self._refused):
            raise storage_disabled()
        route = self._fixed.get((scope.get("method", ""), path))
        if route is None:
            router = self._groups.get(_first_segments(path), self._others)
            return router(scope, receive, send)
        scope["route"] = route
        return route.app(scope, receive, send)


def _first_segments(path: str) -> str:
    return "/".join(path.split("/", 3)[:3])
