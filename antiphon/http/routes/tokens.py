"""Endpoints of vLLM's API: tokenizer, version, and the load of the server (its number of
requests)."""

from __future__ import annotations

from importlib.metadata import version

from starlette.requests import Request

from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.wire.admin.server_info import (
    DetokenizeResult,
    ServerLoad,
    ServerVersion,
    TokenizeResult,
)
from antiphon.wire.parsing.fields import body_parser
from antiphon.wire.parsing.tokens import (
    DetokenizeRequest,
    TokenizeRequest,
    parse_tokenize,
)


class TokenRoutes:
    """The routes ``/tokenize``, ``/detokenize``, ``/version`` and ``/load``."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    @operation("POST /tokenize", "tokenize", body=TokenizeRequest, errors=(404, 502))
    async def tokenize(self, request: Request) -> TokenizeResult:
        """Return the token ids of a text."""
        parsed = await bodies.parse(request, self._deps.limits, parse_tokenize)
        tokenizers = self._deps.service.tokenizers
        context = request_context(request.scope)
        async with self._deps.slot(context):
            tokenized = await tokenizers.tokenize(parsed.model, parsed.prompt, context.client)
            token_strs = None
            if parsed.return_token_strs:
                token_strs = tuple(
                    [await tokenizers.detokenize(parsed.model, (id,)) for id in tokenized.ids]
                )
        return TokenizeResult(
            count=len(tokenized.ids),
            max_model_len=tokenized.context_size,
            tokens=tokenized.ids,
            token_strs=token_strs,
        )

    @operation("POST /detokenize", "detokenize", body=DetokenizeRequest, errors=(404,))
    async def detokenize(self, request: Request) -> DetokenizeResult:
        """Return the text of token ids."""
        parsed = await bodies.parse(request, self._deps.limits, body_parser(DetokenizeRequest))
        context = request_context(request.scope)
        tokenizers = self._deps.service.tokenizers
        async with self._deps.slot(context):
            text = await tokenizers.detokenize(parsed.model, parsed.tokens, context.client)
        return DetokenizeResult(prompt=text)

    @operation("GET /version", "getVersion")
    async def version(self, request: Request) -> ServerVersion:
        """Return the version of this server."""
        return ServerVersion(version=version("antiphon"))

    @operation("GET /load", "getLoad")
    async def load(self, request: Request) -> ServerLoad:
        """Return how many requests run or wait."""
        admission = self._deps.admission
        return ServerLoad(server_load=admission.running + admission.waiting)
