"""The sampling options that a request passes through to the engine unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

__all__ = ["Digest", "SamplingOptions", "Session"]


class Digest(Protocol):
    """Returns a digest with a secret key, which reveals nothing of its arguments."""

    def __call__(self, content: bytes, *, purpose: str, tenant: str) -> str: ...


class Session(Struct, frozen=True, kw_only=True):
    """The conversation that a request belongs to, for routers in front of several engines.

    ``identity``: the value that identifies the conversation within its tenant. Both keys are
    digests. They are computed on first use, because most models have one engine and no router.
    """

    tenant: str
    identity: str
    digest: Digest

    @property
    def key(self) -> str:
        """A key that is equal for all requests of a conversation."""
        content = self.identity.encode("utf-8", "surrogatepass")
        return self.digest(content, purpose="session", tenant=self.tenant)

    @property
    def tenant_key(self) -> str:
        """A key that is equal for all requests of a tenant."""
        return self.digest(b"", purpose="session tenant", tenant=self.tenant)


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """Base of ``conversation.Options`` and ``engines.base.Sampling``: the options they share.

    ``None`` selects the engine's default for the model.

    ``top_k``: 0 or -1 for all tokens.
    ``stop``: strings that end the output and are not part of it.
    ``logit_bias``: token id → bias.
    ``logprobs``: None: none; 0: of the sampled token; n: with n alternatives.
    ``ignore_eos``: end tokens do not end the output.
    ``cache_key``: requests with the same key share a prefix; an engine may route by it.
    ``cache_salt``: cached prefixes are shared only among requests with the same salt.
    ``cache_scope``: an opaque value that stands for the tenant and its ``cache_salt``. Requests of
    different scopes share no cached prefix, and none is counted. None: all share.
    ``tenant``: who generates. An engine whose slots are all in use serves waiting tenants in turn.
    It is not sent to other servers.
    ``session``: the conversation, for the choice among several engines. None: unknown.
    ``priority``: lower values are scheduled earlier, as in vLLM.
    ``adapter``: the name of a LoRA adapter of the engine.
    ``trace``: W3C trace context of the request (``traceparent``, ``tracestate``).
    ``extra``: options of one engine, under its own names.
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
        """The salt for an engine or server that separates cached prefixes by a salt."""
        return self.cache_scope or self.cache_salt
