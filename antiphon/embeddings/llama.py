"""Embedding models and rerankers in GGUF files. llama.cpp runs them in a child process."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.engines.gguf.reader import GgufHeader, read_gguf
from antiphon.engines.llama.process import LlamaProcess
from antiphon.engines.llama.server_program import ServerSetup
from antiphon.engines.llama.tokenizer import require_llama
from antiphon.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    BackendError,
    EngineLost,
    InvalidRequest,
    SetupError,
)

from .base import Prefixes, Role, Text, Vector
from .reranker import RerankResult, as_relevance, parse_ranking
from .thread_worker import Piece, ThreadedEmbedder

#: How the vectors of the tokens are combined into the vector of a text → llama.cpp's name for it.
POOLINGS: Mapping[str, str] = {
    "mean": "LLAMA_POOLING_TYPE_MEAN",
    "cls": "LLAMA_POOLING_TYPE_CLS",
    "last": "LLAMA_POOLING_TYPE_LAST",
}
DEFAULT_CONTEXT = 2048
#: llama.cpp's name of the pooling of rerankers, and the value of it in a file.
_RANK, _RANK_VALUE = "LLAMA_POOLING_TYPE_RANK", 4
#: Texts per request to a reranker: after each request, those of other clients get a turn.
_RERANK_BATCH = 16
#: Tokens of a prompt that are kept free for what a reranker's template adds to query and text.
_TEMPLATE_TOKENS = 128
#: Where a file has the template of a reranker's prompt, and the place of the text in it.
_TEMPLATE, _DOCUMENT = "tokenizer.chat_template.rerank", "{document}"
#: Types of tokens that llama.cpp finds in a prompt by their text: unknown, control, user-defined.
_SPECIAL_TYPES = (2, 3, 4)


async def load(
    path: Path,
    *,
    threads: int = 1,
    context_size: int | None = None,
    gpu_layers: int = -1,
    pooling: str | None = None,
    prefixes: Prefixes | None = None,
) -> ThreadedEmbedder:
    """Load the GGUF file at ``path`` and return its embedder. Raises ``SetupError`` if the file or
    an argument cannot be used.

    - ``threads``: the number of CPU threads that compute vectors.
    - ``context_size``: the maximum length of a text in tokens, by default 2048. If the model was
      trained for shorter texts only, the length of these texts is the maximum.
    - ``gpu_layers``: how many layers of the model run on the GPU. By default, as many as fit.
    - ``pooling``: how the vectors of the tokens become one vector: one of ``POOLINGS``. Needed only
      if the file does not say it.
    - ``prefixes``: texts that are put before queries and passages.
    """
    require_llama()
    head = await asyncio.to_thread(read_gguf, path)
    reader = _Reader(path, head, _pooling(path, head, pooling), threads, context_size, gpu_layers)
    await reader.start()
    loop, before = asyncio.get_running_loop(), prefixes or Prefixes()

    def call(texts: Sequence[Text], role: Role) -> tuple[list[Vector], int]:
        lead = before.for_role(role)
        inputs = [lead + text if isinstance(text, str) else list(text) for text in texts]
        asked = reader.post("/v1/embeddings", {"input": inputs}, "input")
        answer = asyncio.run_coroutine_threadsafe(asked, loop).result()
        vectors = [array("f", entry["embedding"]) for entry in answer["data"]]
        return vectors, int(answer["usage"]["prompt_tokens"])

    return ThreadedEmbedder(
        call,
        reader.close,
        split=_whole_text,
        dimensions=int(head.architecture_value("embedding_length") or 0),
        vocabulary_size=len(head.metadata.get("tokenizer.ggml.tokens", ())),
    )


async def load_reranker(
    path: Path, *, threads: int = 1, context_size: int | None = None, gpu_layers: int = -1
) -> LlamaReranker:
    """Load the reranker in the GGUF file at ``path``. The arguments are those of ``load``. Raises
    ``SetupError`` if the file cannot be used, or contains no reranker."""
    require_llama()
    head = await asyncio.to_thread(read_gguf, path)
    if head.architecture_value("pooling_type") != _RANK_VALUE:
        raise SetupError(f"{path} is not a reranker: its pooling is not 'rank'")
    reader = _Reader(path, head, _RANK, threads, context_size, gpu_layers)
    await reader.start()
    return LlamaReranker(reader, _special_texts(head))


class LlamaReranker:
    """``Reranker`` that runs on llama.cpp. ``reader``: the loaded model. Of a text that is too long
    for the model, the end is not read.

    llama.cpp puts query and text into the template before it looks for special tokens, and it takes
    only strings. So a space is put into each text of a special token: it stays plain text.
    ``special``: matches the first character of these texts.
    """

    def __init__(self, reader: _Reader, special: re.Pattern[str]) -> None:
        self._reader = reader
        self._special = special

    async def rerank(self, query: str, texts: Sequence[str]) -> RerankResult:
        query = self._plain(query)
        scores: list[float] = []
        tokens = 0
        for start in range(0, len(texts), _RERANK_BATCH):
            batch = [
                await self._reader.shortened(self._plain(text), query)
                for text in texts[start : start + _RERANK_BATCH]
            ]
            body = {"query": query, "documents": batch}
            answer = await self._reader.post("/v1/rerank", body, "query")
            found, read = parse_ranking(answer, len(batch))
            scores += found
            tokens += read
        return RerankResult(as_relevance(scores), tokens)

    def _plain(self, text: str) -> str:
        return self._special.sub(r"\g<0> ", text)

    async def close(self) -> None:
        await self._reader.close()


class _Reader:
    """A model that reads texts, in its own process of llama.cpp."""

    def __init__(
        self,
        path: Path,
        head: GgufHeader,
        pooling: str | None,
        threads: int,
        context_size: int | None,
        gpu_layers: int,
    ) -> None:
        size = context_size or DEFAULT_CONTEXT
        self._context = min(size, int(head.architecture_value("context_length") or size))
        fields = {
            "embedding": True,
            "n_ctx": self._context,
            "n_parallel": 1,
            # llama.cpp needs a whole text in one batch.
            "n_batch": self._context,
            "n_ubatch": self._context,
            "n_gpu_layers": gpu_layers,
        }
        setup = ServerSetup(model=str(path), threads=threads, fields=fields, pooling=pooling)
        self._process = LlamaProcess(setup)

    async def start(self) -> None:
        """Load the model. Raises ``SetupError``."""
        try:
            await self._process.start()
        except BaseException:
            await self._process.close()
            raise

    async def post(self, target: str, body: Mapping[str, Any], param: str) -> Any:
        """Send a request to llama.cpp. ``param``: the field of the client's request that has the
        texts. Raises ``InvalidRequest`` if a text is too long, and ``BackendError``."""
        try:
            answer = await self._post(target, body)
        except EngineLost:  # perhaps because of another request
            answer = await self._post(target, body)
        if (error := answer.get("error")) is None:
            return answer
        message = error.get("message", "unknown error")
        if "too large" in message or error.get("type") == "exceed_context_size_error":
            raise InvalidRequest(
                f"A text of the {param} is longer than this model's limit of {self._context}"
                " tokens.",
                param=param,
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        raise BackendError(f"The engine failed: {message}")

    async def _post(self, target: str, body: Mapping[str, Any]) -> Any:
        await self._process.start()
        client = self._process.client
        try:
            return await client.post(target, body)
        except OSError:
            await self._process.end(client)
            raise EngineLost from None

    async def shortened(self, text: str, query: str) -> str:
        """Return the beginning of ``text`` that fits into the context with ``query``."""
        room = self._context - min(_TEMPLATE_TOKENS, self._context // 4)
        if len(query.encode()) + len(text.encode()) <= room:  # a token has at least one byte
            return text
        room -= len(await self._tokenize(query))
        ids = await self._tokenize(text)
        if len(ids) <= room or room <= 0:
            return text
        answer = await self.post("/detokenize", {"tokens": ids[:room]}, "documents")
        return str(answer["content"])

    async def _tokenize(self, text: str) -> list[int]:
        answer = await self.post("/tokenize", {"content": text}, "documents")
        return list(answer["tokens"])

    async def close(self) -> None:
        await self._process.close()


def _whole_text(text: Text, role: Role, limit: int) -> list[Piece]:
    """Return the text as one piece, since llama.cpp refuses a text that is longer than the context.
    A token of usual text has about four bytes."""
    return [Piece(text, len(text.encode()) // 4 + 1 if isinstance(text, str) else len(text))]


def _special_texts(head: GgufHeader) -> re.Pattern[str]:
    """Return a pattern for the texts that have a meaning in a reranker's prompt. It matches the
    first character of such a text. Without a template, llama.cpp joins the tokens of query and text
    itself, so no text has a meaning."""
    if _TEMPLATE not in head.metadata:
        return re.compile("(?!)")
    tokens, types = (
        head.metadata.get(f"tokenizer.ggml.{each}", ()) for each in ("tokens", "token_type")
    )
    special = {token for token, kind in zip(tokens, types, strict=False) if kind in _SPECIAL_TYPES}
    texts = (_DOCUMENT, *(token for token in special if len(token.strip()) > 1))
    return re.compile(f"(?={'|'.join(map(re.escape, texts))}).", re.DOTALL)


def _pooling(path: Path, head: GgufHeader, requested: str | None) -> str | None:
    """Return llama.cpp's name of the pooling; None if the file says it. Raises ``SetupError``."""
    if requested is not None:
        if requested not in POOLINGS:
            raise SetupError(f"unknown pooling {requested!r} (known: {', '.join(POOLINGS)})")
        return POOLINGS[requested]
    if not head.architecture_value("pooling_type"):
        raise SetupError(
            f"{path} does not name its pooling: set engine_options.pooling to one of"
            f" {', '.join(POOLINGS)}"
        )
    return None
