"""Creates runs from prepared requests. The factory decides where a response is stored, which
content is encrypted, and how long the run may take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from antiphon.backends.base import Reply
from antiphon.backends.catalog import CatalogModel
from antiphon.errors import ConversationLost
from antiphon.inference.conversation import PromptTokens
from antiphon.limits.key_ring import CheckAccess
from antiphon.resources.conversations import ConversationLockHandle
from antiphon.runs.background.event_log_writer import retry_until_available
from antiphon.runs.background.restore import RestoredRun
from antiphon.runs.execution.recorder import ReasoningFields, Recorder
from antiphon.runs.execution.run import CanRestart, Run, RunSpec
from antiphon.runs.execution.supervisor import Supervisor
from antiphon.runs.history.chain_cache import ChainCache, chain_items
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.store.records import ConversationLock, StoredResponse
from antiphon.store.upkeep.health import StoreHealth
from antiphon.stream.writer import ResponseWriter
from antiphon.support.tasks import do_nothing
from antiphon.tracing.base import TraceHeaders
from antiphon.wire.items import Item
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import Response, Usage

from .dependencies import RunDependencies
from .preparer import PreparedRequest
from .request.initial_response import initial_response
from .request.options import hidden_item_types
from .usage_counter import UsageCounter, UsageMeter

_ENCRYPTED_REASONING = "reasoning.encrypted_content"

_Save = Callable[[StoredResponse], Awaitable[None]]


class RunFactory:
    """Creates runs. ``supervisor`` waits for the foreground runs when the server stops. ``usage``
    counts the usage of responses that are not stored. ``health`` learns of each response that was
    stored, and ``chains`` of each that can be continued. In the methods, ``api_key`` is the name of
    the API key to which the usage is charged."""

    def __init__(
        self,
        dependencies: RunDependencies,
        supervisor: Supervisor,
        usage: UsageCounter,
        health: StoreHealth,
        chains: ChainCache,
    ) -> None:
        self._dependencies = dependencies
        self._chains = chains
        self._health = health
        self._usage = usage
        self._supervisor = supervisor
        #: The supervisor of background runs is never drained: when the server stops, these runs are
        #: released for other servers and do not fail.
        self._background_supervisor = Supervisor()

    async def close(self) -> None:
        """Watch background runs no longer. They have ended or were released."""
        await self._background_supervisor.close()

    def foreground_run(
        self,
        tenant: str,
        prepared: PreparedRequest,
        held: ConversationLockHandle,
        *,
        api_key: str | None = None,
        counts_prompt: bool = True,
    ) -> Run:
        """Create a foreground run. The caller starts it with ``Run.drive``. ``held``: the lock of
        the run's conversation, which is released when the run ends. ``counts_prompt``: whether the
        input tokens are charged."""
        request, response, context = prepared.request, prepared.response, prepared.context
        chain, parent_tokens, input = context.chain, context.prompt_tokens, context.input
        if chain and response.store and not all(stored.response.store for stored in chain):
            # The response continues a response that is not stored. Its history becomes its input.
            chain, parent_tokens, input = (), None, (*chain_items(chain), *input)
        meter = self._meter(tenant, api_key, prepared.model.name, counts_prompt)
        check_access = self._dependencies.keys.access(tenant, api_key)
        save = None
        if response.store:
            save = self._save(tenant, check_access, held.lock, request.trace or {}, meter)
        spec = self._spec(
            prepared.reply,
            input,
            held.release,
            meter,
            parent_tokens=parent_tokens,
            save=save,
            check_access=check_access,
        )
        dependencies = self._dependencies
        writer = ResponseWriter(
            response,
            ids=dependencies.ids,
            kinds=dependencies.kinds,
            clock=dependencies.clock,
        )
        prompt = spec.reply.prompt_tokens
        return Run(
            writer,
            spec,
            self._supervisor,
            recorder=Recorder(
                writer,
                reasoning_fields=self._reasoning_fields(tenant, request),
                hidden_types=hidden_item_types(request),
                prompt=prompt.ids if prompt is not None else (),
            ),
            chain=chain,
            ignored_tools=prepared.ignored_tools,
        )

    def completion_run(
        self,
        tenant: str,
        request: CreateResponse,
        model: CatalogModel,
        reply: Reply,
        response_id: str,
        *,
        api_key: str | None = None,
        counts_prompt: bool = True,
    ) -> Run:
        """Create a run that continues raw text. Neither the prompt nor the output is stored.
        ``counts_prompt``: whether the input tokens are charged."""
        dependencies = self._dependencies
        name, now = request.model or model.name, int(dependencies.clock())
        response = initial_response(request, id=response_id, model=name, created_at=now)
        writer = ResponseWriter(response, ids=dependencies.ids, kinds=dependencies.kinds)
        meter = self._meter(tenant, api_key, model.name, counts_prompt)
        check_access = dependencies.keys.access(tenant, api_key)
        spec = self._spec(reply, (), do_nothing, meter, check_access=check_access)
        return Run(writer, spec, self._supervisor)

    def background_run(
        self,
        tenant: str,
        request: CreateResponse,
        reply: Reply,
        parent: PromptTokens | None,
        restored: RestoredRun,
        *,
        api_key: str | None,
        can_restart: CanRestart,
    ) -> Run:
        """Create the ``Run`` object that executes a background run. It continues after the stored
        events of the run. It does not store the response, because its event sink does. ``parent``:
        the token ids of the conversation before the response; None if they are unknown.
        ``can_restart``: see ``RunSpec``."""
        dependencies = self._dependencies
        writer = restored.writer(
            ids=dependencies.ids, kinds=dependencies.kinds, clock=dependencies.clock
        )
        recorder = Recorder(
            writer,
            reasoning_fields=self._reasoning_fields(tenant, request),
            hidden_types=hidden_item_types(request),
            prompt=restored.prompt,
        )
        recorder.resume(restored.tokens)
        spec = self._spec(
            reply,
            request.input or (),
            do_nothing,
            parent_tokens=parent,
            keepalive_s=0,
            check_access=partial(dependencies.keys.check, tenant, api_key),
            can_restart=can_restart,
        )
        return Run(writer, spec, self._background_supervisor, recorder=recorder)

    def _meter(
        self, tenant: str, api_key: str | None, model: str, counts_prompt: bool
    ) -> UsageMeter:
        clock = self._dependencies.clock
        return UsageMeter(
            tenant=tenant,
            api_key=api_key,
            model=model,
            started=clock(),
            clock=clock,
            counts_prompt=counts_prompt,
        )

    def _spec(
        self,
        reply: Reply,
        input: tuple[Item, ...],
        release: Callable[[], Awaitable[None]],
        meter: UsageMeter | None = None,
        *,
        parent_tokens: PromptTokens | None = None,
        save: _Save | None = None,
        keepalive_s: float | None = None,
        check_access: CheckAccess | None = None,
        can_restart: CanRestart | None = None,
    ) -> RunSpec:
        def count(response: Response, usage: Usage | None) -> None:
            if meter is not None:
                self._usage.add(meter.record(response, usage))
                self._usage.add_tools(meter, response)

        policy = self._dependencies.policy
        return RunSpec(
            reply=reply,
            input=input,
            parent_tokens=parent_tokens,
            save=save,
            clock=self._dependencies.clock,
            keepalive_s=policy.keepalive_s if keepalive_s is None else keepalive_s,
            first_delta_wait_s=policy.first_delta_wait_s,
            keepalive_events=policy.keepalive_events,
            timeout_s=policy.timeout_s,
            release=release,
            count=count,
            check_access=check_access,
            can_restart=can_restart,
            reraise=policy.reraise,
        )

    def _save(
        self,
        tenant: str,
        check_access: CheckAccess,
        lock: ConversationLock | None,
        trace: TraceHeaders,
        meter: UsageMeter,
    ) -> _Save:
        """Return the function that stores the response. A failed response is stored, but it is not
        added to its conversation. ``lock``: the lock of the conversation. Nothing is stored for a
        client that has lost its access: the function raises ``AccessRevoked``."""
        tracer = self._dependencies.tracer
        store, save_retry_s = self._dependencies.store, self._dependencies.policy.save_retry_s

        async def save(stored: StoredResponse) -> None:
            await check_access()
            usage = meter.record(stored.response)
            with tracer.start("store response", trace):
                if stored.response.status not in ("completed", "incomplete"):
                    await store.save(tenant, stored, usage=usage)
                elif not await retry_until_available(
                    lambda: store.save(tenant, stored, lock=lock, usage=usage), limit_s=save_retry_s
                ):
                    raise ConversationLost
                else:
                    self._chains.add_stored(tenant, stored)
            if usage.tool_calls:
                self._usage.add_tools(meter, stored.response)
            self._health.note_write()

        return save

    def _reasoning_fields(self, tenant: str, request: CreateResponse) -> ReasoningFields:
        """Return a function that encrypts finished reasoning. If the client asked for encrypted
        reasoning or ``store`` is false, the function encrypts all reasoning. Otherwise it encrypts
        only reasoning that an upstream API has already encrypted, so that the client can send that
        reasoning back."""
        encrypt = TenantSealer(self._dependencies.seal, tenant).encrypted_reasoning
        if request.store is not False and _ENCRYPTED_REASONING not in (request.include or ()):
            return lambda item: encrypt(item) if item.encrypted_content else {}
        return encrypt
