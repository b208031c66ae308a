"""The sampling options of a request that are passed to the engine unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

__all__ = ["Digest", "SamplingOptions", "Session", "SessionEvent", "SessionSignal"]


class Digest(Protocol):
    """A function that returns a keyed digest of its arguments. The digest does not reveal the
    arguments."""

    def __call__(self, content: bytes, *, purpose: str, tenant: str) -> str: ...


class Session(Struct, frozen=True, kw_only=True):
    """The conversation to which a request belongs. If a model has several engines, a router uses
    ``key`` to send all requests of a conversation to the same engine.

    ``identity``: a string that identifies the conversation within its tenant. ``digest``: the
    function that computes ``key`` and ``tenant_key``. Upstream servers get these two digests, and
    so do not learn the names of the conversation and the tenant. The digests are computed only when
    they are read, because most models have one engine and no router. ``owner``: the id of the
    conversation or response with which the data of the request is stored and deleted; None if the
    server does not store it.
    """

    tenant: str
    identity: str
    digest: Digest
    owner: str | None = None

    @property
    def key(self) -> str:
        """A digest of ``identity`` and ``tenant``. It is equal for all requests of a
        conversation."""
        content = self.identity.encode("utf-8", "surrogatepass")
        return self.digest(content, purpose="session", tenant=self.tenant)

    @property
    def tenant_key(self) -> str:
        """A digest of ``tenant``, which is sent to upstream servers instead of the tenant's name.
        It is equal for all requests of a tenant."""
        return self.digest(b"", purpose="session tenant", tenant=self.tenant)


#: What can happen to a conversation; see ``SessionSignal``.
SessionEvent: TypeAlias = Literal["waiting", "superseded", "deleted"]


class SessionSignal(Struct, frozen=True, kw_only=True):
    """What has happened to a conversation, for engines that cache its prefix.

    ``event``: ``waiting``: its next prompt needs the result of a tool call. ``superseded``: a
    compaction has replaced its beginning. ``deleted``: the data of ``owner`` was deleted, see
    ``Session``. ``key``: the key of its ``Session``. Both are None for all conversations of the
    tenant.
    """

    event: SessionEvent
    key: str | None
    tenant: str
    owner: str | None = None


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """Base of ``conversation.Options`` and ``engines.base.Sampling``: the options that both classes
    share. ``None`` selects the engine's default for the model, unless stated otherwise.

    - ``top_k``: 0 or -1 stands for all tokens.
    - ``stop``: strings that end the output and are not part of it.
    - ``logit_bias``: token id → bias.
    - ``logprobs``: which log probabilities are returned. 0: those of the sampled tokens. n: also
      those of n alternatives per token. None: no log probabilities.
    - ``ignore_eos``: end tokens do not end the output.
    - ``cache_key``: requests with the same key begin with the same prompt prefix. An engine may
      route by the key.
    - ``cache_salt``: only requests with the same salt share cached prefixes.
    - ``cache_scope``: an opaque value that stands for the tenant and its ``cache_salt``. Requests
      of different scopes share no cached prefix. If the engine cannot separate its cache by scope,
      Antiphon reports no cached tokens for requests with a scope. None: all requests share cached
      prefixes.
    - ``tenant``: the tenant of the request. If all slots of an engine are in use, the waiting
      tenants are served alternately. The tenant is not sent to other servers.
    - ``session``: the conversation of the request. A router uses it to choose one of several
      engines. None: the conversation is unknown.
    - ``priority``: lower values are scheduled earlier, as in vLLM.
    - ``adapter``: the name of a LoRA adapter of the engine.
    - ``trace``: W3C trace context of the request (``traceparent``, ``tracestate``).
    - ``extra``: options of one engine, under the engine's own names.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = {}
    logprobs: int | None = None
    ignore_eos: bool = False
    cache_key: str | None = None
    cache_salt: str | None = None
    cache_scope: str | None = None
    tenant: str = ""
    session: Session | None = None
    priority: int | None = None
    adapter: str | None = None
    trace: Mapping[str, str] = {}
    extra: Mapping[str, Any] = {}

    @property
    def prefix_salt(self) -> str | None:
        """The salt for an engine or an upstream server that shares cached prefixes only among
        requests with the same salt. None: share them among all requests."""
        return self.cache_scope or self.cache_salt
