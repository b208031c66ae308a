"""Open the store, the external storage for contents of files, and the tasks that work on them."""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from contextlib import AsyncExitStack
from pathlib import Path

from antiphon.blobs.base import Blobs
from antiphon.blobs.collector import BlobCollector
from antiphon.blobs.locations import open_blobs
from antiphon.config.folders import runtime_folder
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.http.metrics import Metrics
from antiphon.resources.webhook_endpoints import WebhookEndpoints
from antiphon.runs.service import Service
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store import is_postgres, open_store
from antiphon.store.base import Store
from antiphon.store.common.row_cipher import RowCipher
from antiphon.store.records import DueWebhook
from antiphon.store.upkeep.clock import Clock, StoreClock
from antiphon.store.upkeep.store_observer import observe_store
from antiphon.store.upkeep.sweeper import Sweeper
from antiphon.support.installation import antiphon_command
from antiphon.support.log import Log
from antiphon.webhooks.deliver import (
    FindTarget,
    WebhookDeliveries,
    WebhookSender,
    WebhookTarget,
)
from antiphon.workers.context import WorkerContext

from .clock import read_clock
from .policy import store_retention

#: Value of the setting ``files`` for contents in the store itself.
FILES_IN_STORE = "store"


async def open_server_store(
    stack: AsyncExitStack, settings: Settings, metrics: Metrics, worker: WorkerContext | None
) -> tuple[Store, StoreClock]:
    """Open the store and its clock. The metrics measure the store's operations."""
    opened = await open_store(
        settings.store,
        cipher=store_cipher(settings),
        vectors=settings.vectors,
        peers=_store_peers(settings, worker),
        connections=settings.store_connections,
        listen_url=settings.store_listen_url,
        bus=settings.bus,
    )
    stack.push_async_callback(opened.close)
    store = observe_store(opened, metrics, time.monotonic)
    clock = StoreClock(store, wall=read_clock, monotonic=time.monotonic)
    await clock.synchronize()
    return store, clock


async def open_server_blobs(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    encryptor: Encryptor,
    clock: Clock,
    log: Log,
) -> Blobs | None:
    """Open the external storage for the contents of files and of large responses. Start a task that
    deletes unneeded contents from this storage. Returns None if the contents are in the store
    itself."""
    blobs = await files_blobs(settings, store, encryptor)
    if blobs is not None:
        store.use_blobs(blobs, settings.response_blob_bytes)
        collector = BlobCollector(store, blobs, clock=clock, log=log)
        await stack.enter_async_context(collector)
    return blobs


async def start_store_tasks(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    service: Service,
    sender: WebhookSender | None,
    clock: StoreClock,
    log: Log,
) -> None:
    """Start the tasks that delete expired data and deliver webhooks. They run until ``stack`` is
    closed."""
    sweeper = Sweeper(store, store_retention(settings), read_clock=clock.synchronize, log=log)
    await stack.enter_async_context(sweeper)
    if sender is not None:
        await stack.enter_async_context(
            WebhookDeliveries(
                store.runs,
                sender,
                _find_target(settings, service.webhook_endpoints),
                clock=clock,
                random=random.random,
            )
        )


def peers_folder(worker: WorkerContext | None) -> Path | None:
    """Return the folder with the sockets of this server's processes. Returns None for a server
    without workers."""
    return None if worker is None else worker.folder.peers


def _store_peers(settings: Settings, worker: WorkerContext | None) -> Path | None:
    """Return the folder for the sockets with which the processes that share a store find each
    other. With PostgreSQL, all servers of this user on this host share one folder. With another
    store, only the workers of this server share a folder. Returns None if the store is not
    PostgreSQL and the server has no workers, because then only one process uses the store."""
    return runtime_folder() if is_postgres(settings.store) else peers_folder(worker)


def store_cipher(settings: Settings, *, keeps: bool = True) -> RowCipher | None:
    """Return the cipher for the rows of the store. Returns None if they are not encrypted.
    ``keeps``: whether encrypted rows stay as they are. If it is false and the settings no longer
    ask for encryption, the cipher decrypts rows and encrypts none. Raises ``SetupError``."""
    if not settings.store_encrypted and (keeps or not settings.encryption_keys):
        return None
    if not settings.encryption_keys:
        raise SetupError("store_encrypted: needs encryption_keys")
    return RowCipher(Encryptor(_encryption_keys(settings)), encrypts=settings.store_encrypted)


async def open_encryptor(settings: Settings, store: Store) -> Encryptor:
    """Return an encryptor with the keys in the settings. If the settings have no keys, the
    encryptor uses a key that all servers of the store share. This key is in the store."""
    if keys := _encryption_keys(settings):
        return Encryptor(keys)
    secret = await store.get_or_create_secret("seal", EncryptionKey.generate().secret)
    return Encryptor([EncryptionKey.from_secret(secret)])


def _encryption_keys(settings: Settings) -> list[EncryptionKey]:
    return [EncryptionKey.parse(text) for text in settings.encryption_keys]


async def files_blobs(
    settings: Settings, store: Store, encryptor: Encryptor, url: str | None = None
) -> Blobs | None:
    """Open the external storage for the contents of uploaded files. ``url``: the address of this
    storage; the default is the setting ``files``. Returns None if the address is ``store``, because
    the store itself then holds the contents.

    Raises ``SetupError`` if the storage cannot be opened. Also raises it if the setting ``files``
    is ``store`` but some contents are still outside of the store.
    """
    url = settings.files if url is None else url
    if url == FILES_IN_STORE:
        if url == settings.files and (
            await store.files.list_contents(after=0, limit=1, in_blobs=True)
            or await store.has_blobs()
        ):
            command = antiphon_command("files migrate --from URL")
            raise SetupError(f"files: contents are outside of the store. To move them: {command}")
        return None
    if not store.files.supports_blobs:
        raise SetupError(f'files: this store keeps all contents itself: use "{FILES_IN_STORE}"')
    # Several stores may share a bucket. Each store has its own prefix and deletes only below it.
    root = await store.get_or_create_secret("blobs", secrets.token_bytes(32))
    return open_blobs(
        url,
        settings.files_options,
        root=hashlib.sha256(root).hexdigest()[:32],
        encryptor=encryptor,
        encrypts=settings.files_encrypted,
        new_id=lambda: secrets.token_hex(16),
    )


def open_webhook_sender(stack: AsyncExitStack, settings: Settings) -> WebhookSender | None:
    """Return the sender of webhooks, which is closed with ``stack``. Returns None if the settings
    name no receiver and allow no endpoints. Raises ``SetupError``."""
    if _operator_target(settings) is None and settings.webhook.endpoints == "off":
        return None
    sender = WebhookSender.open()
    stack.push_async_callback(sender.close)
    return sender


def _operator_target(settings: Settings) -> WebhookTarget | None:
    webhook = settings.webhook
    if webhook.url is None:
        return None
    return WebhookTarget.parse(webhook.url, webhook.secrets, private=webhook.allow_private)


def _find_target(settings: Settings, endpoints: WebhookEndpoints) -> FindTarget:
    """Return the function that finds the receivers of webhooks."""
    operator = _operator_target(settings)

    async def find(due: DueWebhook) -> WebhookTarget | None:
        return await endpoints.target(due.tenant, due.endpoint) if due.endpoint else operator

    return find
