"""What the package ``antiphon.runs`` needs from the rest of the server: objects that every server
has (``RunDependencies``), and features that a server may lack (``OptionalFeatures``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct, field

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.backends.catalog import ModelCatalog
from antiphon.backends.session_signals import SessionSignals
from antiphon.blobs.base import Blobs
from antiphon.inference.sampling import Session, SessionEvent, SessionSignal
from antiphon.limits.key_ring import KeyRing
from antiphon.resources.prompts import Prompts
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.stream.kinds import ItemKind, kinds_for
from antiphon.stream.writer import Ids
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tracing.base import Tracer
from antiphon.webhooks.deliver import WebhookSender
from antiphon.wire.items import ItemBase
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_shapes import RequestShapes

from .background.worker import OnEnd, ignore_end
from .policy import Policy
from .tool_loop.executor import OnToolCall, ignore_call


def _random_seal() -> Encryptor:
    return Encryptor((EncryptionKey.generate(),))


class RunDependencies(Struct, frozen=True, kw_only=True):
    """Dependencies that request preparation, runs and background jobs share. One instance per
    server process.

    ``clock`` returns Unix seconds. ``ids`` returns a new id for a prefix. ``seal`` encrypts values
    that clients or the store keep for the server. The default ``seal`` has a random key, so only
    this process can decrypt these values. ``on_tool_call`` is called after each server-side tool
    call. ``on_background_end`` is called after each background response that ended in this process.
    ``signals``: tells engines what happens to conversations; None to tell them nothing.
    ``keys``: the API keys that are valid now.
    """

    models: ModelCatalog
    store: Store
    clock: Callable[[], float]
    ids: Ids
    policy: Policy = Policy()
    seal: Encryptor = field(default_factory=_random_seal)
    tracer: Tracer = field(default_factory=Tracer)
    shapes: RequestShapes = field(default_factory=RequestShapes)
    keys: KeyRing = field(default_factory=KeyRing)
    on_tool_call: OnToolCall = ignore_call
    on_background_end: OnEnd = ignore_end
    signals: SessionSignals | None = None

    @property
    def kinds(self) -> Mapping[type[ItemBase], ItemKind]:
        """The table of item kinds. It depends on ``policy.reasoning_events``."""
        return kinds_for(self.policy.reasoning_events)

    def cache_scope(self, tenant: str, request: CreateResponse) -> str | None:
        """Return the cache scope of a request. Requests share cached prompts only if they have the
        same scope. Returns None if all tenants share cached prompts.

        The scope is a digest of the tenant and of the request's ``cache_salt``. It does not reveal
        the tenant. All servers with the same secret key (``seal``) compute the same digest.
        """
        if self.policy.share_prefix_cache:
            return None
        salt = (request.cache_salt or "").encode("utf-8", "surrogatepass")
        return self.seal.digest(salt, purpose="prefix cache", tenant=tenant)

    def session(self, tenant: str, identity: str, *, owner: str | None = None) -> Session:
        """Return the ``Session`` of a tenant's conversation. A router uses it to send all requests
        of the conversation to the same engine. ``identity``: a string that identifies the
        conversation and is the same on every turn. ``owner``: see ``Session``.

        All servers with the same secret key (``seal``) compute the same digests (``Session.key``
        and ``Session.tenant_key``).
        """
        return Session(tenant=tenant, identity=identity, digest=self.seal.digest, owner=owner)

    def signal(
        self, tenant: str, identity: str | None, event: SessionEvent, owner: str | None = None
    ) -> None:
        """Tell the engines what has happened to a conversation of a tenant. ``identity``: see
        ``session``; None for all conversations of the tenant. ``owner``: what was deleted."""
        if self.signals is not None:
            key = None if identity is None else self.session(tenant, identity).key
            signal = SessionSignal(event=event, key=key, tenant=tenant, owner=owner)
            self.signals.send(signal)


class OptionalFeatures(Struct, frozen=True, kw_only=True):
    """Features that a server may lack.

    ``fetcher``: fetches URLs; without a fetcher, URLs in requests are refused. ``documents``
    extracts text from files. ``providers``: the server-side tools by tool type. ``containers``: the
    registry of containers; without a registry there are no containers. ``blobs``: where the
    contents of files are stored; None means in the store. ``add_model``: adds an unknown model that
    a request names, if the operator allows it, and otherwise does nothing.
    ``webhook_sender``: sends webhooks to the endpoints of clients; None if clients may not create
    endpoints.
    """

    prompts: Prompts = field(default_factory=Prompts)
    fetcher: Fetcher | None = None
    documents: Documents = field(default_factory=Documents)
    providers: Mapping[str, AnyToolProvider] = {}
    containers: ContainerRegistry | None = None
    blobs: Blobs | None = None
    add_model: Callable[[str], Awaitable[None]] | None = None
    webhook_sender: WebhookSender | None = None
