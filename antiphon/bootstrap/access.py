"""Access to a server: converts API keys, tenants and their limits from the settings."""

from __future__ import annotations

import time
from contextlib import suppress

from antiphon.config.settings import Settings
from antiphon.errors import Conflict, SetupError
from antiphon.http.middleware import auth as guard
from antiphon.limits.clients import limits_of
from antiphon.limits.key_ring import AuthKey
from antiphon.oidc import SignIn
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.runs.dependencies import RunDependencies
from antiphon.security.ssrf import is_loopback
from antiphon.store.base import Store
from antiphon.support.installation import antiphon_command
from antiphon.wire.admin.api_keys import CreateApiKey

from .clock import read_clock

#: Name of the API key that a server without keys creates.
_FIRST_KEY = "first"


def check_exposure(settings: Settings) -> None:
    """Raise ``SetupError`` if other machines can reach the server and no API key protects it, or if
    the settings about keys contradict each other."""
    if settings.first_key and not settings.stored_keys:
        raise SetupError("first_key: needs stored_keys")
    if (
        settings.keys
        or settings.stored_keys
        or settings.oidc
        or settings.allow_unauthenticated
        or is_loopback(settings.host)
    ):
        return
    raise SetupError(
        f"host {settings.host!r} is reachable from other machines and there are no API keys: add"
        f" one ({antiphon_command('key new')}) or set allow_unauthenticated"
    )


async def create_first_key(settings: Settings, store: Store) -> str | None:
    """Create an API key and return it, if the settings ask for it and there is none yet. If several
    processes do this at the same time, one of them creates the key."""
    if not settings.first_key or settings.keys or settings.oidc:
        return None
    keys = ApiKeys(store.keys, clock=read_clock, timer=time.monotonic)
    if (await keys.list()).data:
        return None
    with suppress(Conflict):
        return (await keys.create(CreateApiKey(name=_FIRST_KEY))).value
    return None


def stored_api_keys(settings: Settings, dependencies: RunDependencies) -> ApiKeys | None:
    """Return the API keys in the store. Returns None if the server uses none."""
    if not settings.stored_keys:
        return None
    names = [key.name or key.tenant for key in settings.keys]
    store, clock = dependencies.store, dependencies.clock
    return ApiKeys(store.keys, clock=clock, timer=time.monotonic, reserved=names)


def auth_config(settings: Settings, sign_in: SignIn | None = None) -> guard.AuthConfig:
    """Return the keys, and what each of them permits. Raises ``SetupError``.

    ``sign_in``: how users of issuers sign in. A reload does not change it, so that a server whose
    settings lose their last issuer is not open to everybody.
    """
    keys = tuple(
        AuthKey(
            name=key.name or key.tenant,
            tenant=key.tenant,
            sha256=key.sha256,
            limits=limits_of(key),
        )
        for key in settings.keys
    )
    return guard.AuthConfig(
        keys=keys,
        metrics=settings.metrics,
        hosts=settings.allowed_hosts,
        page=page_is_served(settings),
        roles={
            "operator": settings.operators,
            "auditor": settings.auditors,
            "prompt_editor": settings.prompt_editors,
        },
        stored_keys=settings.stored_keys,
        tenants={name: limits_of(each) for name, each in settings.tenants.items()},
        issuers=() if sign_in is None else sign_in.tokens.issuers,
    )


def page_is_served(settings: Settings) -> bool:
    """Return whether the server serves its web page, a user interface in the browser, at ``/``."""
    return settings.ui == "on" or (settings.ui == "auto" and is_loopback(settings.host))
