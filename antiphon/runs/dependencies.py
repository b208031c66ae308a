"""What the run layer is built from: the shared dependencies and the optional features."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.backends.catalog import ModelCatalog
from antiphon.blobs.base import Blobs
from antiphon.resources.prompts import Prompts
from antiphon.sampling import Session
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.stream.kinds import Kind, kinds_for
from antiphon.stream.writer import Ids
from antiphon.tools.base import ToolProvider
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tracing.base import Tracer
from antiphon.wire.items import ItemBase
from antiphon.wire.request import CreateResponse

from .background.worker import OnEnd, ignore_end
from .policy import Policy
from .tool_loop.executor import OnToolCall, ignore_call

__all__ = ["OptionalFeatures", "RunDependencies"]


def _random_seal() -> Encryptor:
    return Encryptor((EncryptionKey.generate(),))


class RunDependencies(Struct, frozen=True, kw_only=True):
    """What request preparation, runs and background jobs share. One instance per server process.

    ``clock`` returns unix seconds, ``ids`` a fresh id for a prefix. The default ``seal`` has a
    random key: only this process can decrypt the items that clients received from it.
    ``on_tool_call`` hears of each server-side tool call that has ended, ``on_background_end`` of
    each background response that ended in this process.
    """

    models: ModelCatalog
    store: Store
    clock: Callable[[], float]
    ids: Ids
    policy: Policy = Policy()
    seal: Encryptor = field(default_factory=_random_seal)
    tracer: Tracer = field(default_factory=Tracer)
    on_tool_call: OnToolCall = ignore_call
    on_background_end: OnEnd = ignore_end

    @property
    def kinds(self) -> Mapping[type[ItemBase], Kind]:
        """The table of item kinds, as the policy wants reasoning events."""
        return kinds_for(self.policy.reasoning_events)

    def cache_scope(self, tenant: str, request: CreateResponse) -> str | None:
        """Return the scope in which a request's prompt is cached. The scope is a digest that does
        not reveal the tenant; servers with the same key compute the same one. None: tenants share
        their caches."""
        if self.policy.share_prefix_cache:
            return None
        salt = (request.cache_salt or "").encode("utf-8", "surrogatepass")
        return self.seal.digest(salt, purpose="prefix cache", tenant=tenant)

    def session(self, tenant: str, identity: str) -> Session:
        """Return the session of a tenant's conversation. Its keys are the same on all servers with
        the same ``seal``. ``identity``: what identifies the conversation, the same on every turn.
        """
        return Session(tenant=tenant, identity=identity, digest=self.seal.digest)


class OptionalFeatures(Struct, frozen=True, kw_only=True):
    """Parts that a server may lack.

    ``fetcher``: without one, URLs in requests are refused. ``documents`` reads files as text.
    ``providers``: the server-side tools by tool type. ``containers``: without a registry there are
    no containers. ``blobs``: where the contents of files are; None: in the store.
    """

    prompts: Prompts = field(default_factory=Prompts)
    fetcher: Fetcher | None = None
    documents: Documents = field(default_factory=Documents)
    providers: Mapping[str, ToolProvider] = {}
    containers: ContainerRegistry | None = None
    blobs: Blobs | None = None
