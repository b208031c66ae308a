"""Fake servers that continue token ids, in the formats of the four supported servers.

They run an engine without a model. Bodies and payloads are those of the real servers, without
fields that clients do not read.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from zlib import crc32

from aiohttp import web
from aiohttp.test_utils import TestServer

from antiphon.engines.base import Sampling
from antiphon.inference.tokens import Chunk, Prompt, TokenLogprob
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.tokenizer import ByteTokenizer

Json = dict[str, Any]
TOKENIZER = ByteTokenizer(["<image>"])
#: The image placeholder of a chat template.
WORD = TOKENIZER.special["<image>"]


class Shape:
    """One server's format. ``payloads`` returns the payloads of one chunk."""

    path = "/v1/completions"
    owner = ""
    done = True

    def __init__(self, body: Json) -> None:
        self.body = body
        self.cached = 0
        self.count = 0

    def prompt(self) -> list[int]:
        ids: list[int] = self.body["prompt"]
        return ids

    def sampling(self) -> Sampling:
        body = self.body
        return Sampling(
            max_tokens=body["max_tokens"],
            stop_ids=tuple(body.get("stop_token_ids", ())),
            ignore_eos=body.get("ignore_eos", False),
            logprobs=body.get("logprobs"),
            cache_salt=body.get("cache_salt"),
        )

    def payloads(self, chunk: Chunk) -> Iterator[Json]:
        raise NotImplementedError

    def constraint_kind(self) -> str | None:
        """Return the kind of the requested constraint."""
        params = self.body.get("sampling_params", self.body)
        constraint = params.get("structured_outputs", params)
        form = constraint.get("response_format", constraint)
        if text := constraint.get("grammar") or form.get("ebnf"):
            return "ebnf" if "::=" in text else "lark"
        fields = {"json", "json_schema", "response_format"}
        return None if fields.isdisjoint(constraint) else "schema"

    def finish(self) -> Iterator[Json]:
        yield from ()


class Vllm(Shape):
    owner = "vllm"

    def payloads(self, chunk: Chunk) -> Iterator[Json]:
        assert self.body["return_token_ids"] is True
        choice = {
            "index": 0,
            "text": "",
            "logprobs": self._logprobs(chunk),
            "finish_reason": chunk.finish,
            "stop_reason": None,
            "prompt_token_ids": None if self.count else self.prompt(),
            "token_ids": list(chunk.ids),
        }
        self.count += len(chunk.ids)
        yield {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]}

    def _logprobs(self, chunk: Chunk) -> Json | None:
        if not chunk.logprobs:
            return None
        assert self.body["return_tokens_as_token_ids"] is True
        return {
            "text_offset": [0] * len(chunk.ids),
            "token_logprobs": [each.logprob for each in chunk.logprobs],
            "tokens": [f"token_id:{each.id}" for each in chunk.logprobs],
            # The sampled token is always listed, beside the best ones.
            "top_logprobs": [
                {f"token_id:{t.id}": t.logprob for t in each.top}
                | {f"token_id:{each.id}": each.logprob}
                for each in chunk.logprobs
            ],
        }

    def finish(self) -> Iterator[Json]:
        usage = {
            "prompt_tokens": len(self.prompt()),
            "completion_tokens": self.count,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        yield {"id": "cmpl-1", "object": "text_completion", "choices": [], "usage": usage}


class Trtllm(Vllm):
    owner = "tensorrt_llm"
    #: The allowed request fields; others are refused.
    fields = frozenset(
        "model prompt max_tokens stream stream_options temperature top_p top_k min_p seed"
        " logit_bias presence_penalty frequency_penalty repetition_penalty stop_token_ids"
        " ignore_eos detokenize response_format".split()
    )

    def payloads(self, chunk: Chunk) -> Iterator[Json]:
        assert self.body["detokenize"] is False and self.body.keys() <= self.fields
        self.count += len(chunk.ids)
        choice = {"index": 0, "text": "", "token_ids": list(chunk.ids)}
        yield {"choices": [{**choice, "finish_reason": chunk.finish, "stop_reason": None}]}


class Sglang(Shape):
    path, owner = "/generate", "sglang"
    incremental = False

    def __init__(self, body: Json) -> None:
        super().__init__(body)
        self.said: list[TokenLogprob] = []

    def prompt(self) -> list[int]:
        return expand_images(self.body["input_ids"], self.body.get("image_data", ()))

    def sampling(self) -> Sampling:
        params = self.body["sampling_params"]
        return Sampling(
            max_tokens=params["max_new_tokens"],
            stop_ids=tuple(params.get("stop_token_ids", ())),
            ignore_eos=params.get("ignore_eos", False),
            logprobs=self.body.get("top_logprobs_num"),
            cache_salt=self.body.get("extra_key"),
        )

    def payloads(self, chunk: Chunk) -> Iterator[Json]:
        new = chunk.logprobs or tuple(TokenLogprob(id, 0.0) for id in chunk.ids)
        self.said += new
        shown = new if self.incremental else self.said
        meta: Json = {
            "id": "r",
            "prompt_tokens": len(self.prompt()),
            "completion_tokens": len(self.said),
            "cached_tokens": self.cached,
            "finish_reason": None,
        }
        if chunk.finish == "length":
            meta["finish_reason"] = {"type": "length", "length": len(self.said)}
        elif chunk.finish:
            meta["finish_reason"] = {"type": "stop", "matched": chunk.ids[-1]}
        if self.body.get("return_logprob"):
            meta["output_token_logprobs"] = [[each.logprob, each.id, None] for each in shown]
            meta["output_top_logprobs"] = [
                [[t.logprob, t.id, None] for t in each.top] or None for each in shown
            ]
        yield {"text": "", "output_ids": [each.id for each in shown], "meta_info": meta}


class SglangIncremental(Sglang):
    incremental = True


class VllmGenerate(Vllm):
    """vLLM's endpoint for prompts with images."""

    path = "/inference/v1/generate"

    def prompt(self) -> list[int]:
        return expand_images(
            self.body["token_ids"], [p["url"] for p in self.body.get("content_parts", ())]
        )

    def sampling(self) -> Sampling:
        params = self.body["sampling_params"]
        return Sampling(
            max_tokens=params["max_tokens"],
            stop_ids=tuple(params.get("stop_token_ids", ())),
            ignore_eos=params.get("ignore_eos", False),
            logprobs=params.get("logprobs"),
        )

    def payloads(self, chunk: Chunk) -> Iterator[Json]:
        assert self.body["sampling_params"]["detokenize"] is False
        self.count += len(chunk.ids)
        content = [
            {
                "token_id": each.id,
                "logprob": each.logprob,
                "rank": 1,
                "top_logprobs": [{"token_id": t.id, "logprob": t.logprob} for t in each.top],
            }
            for each in chunk.logprobs
        ]
        choice = {"index": 0, "finish_reason": chunk.finish, "token_ids": list(chunk.ids)}
        yield {"choices": [{**choice, "logprobs": {"content": content} if content else None}]}


def expand_images(ids: Iterable[int], urls: Iterable[str]) -> list[int]:
    """Replace each image placeholder by four tokens that identify the image."""
    images = [image_digest(b64decode(url.partition(",")[2])) for url in urls]
    expanded: list[int] = []
    for id in ids:
        expanded += images.pop(0) if images and id == WORD else [id]
    assert not images, "more images than placeholders"
    return expanded


def image_digest(image: bytes) -> bytes:
    return f"{crc32(image) & 0xFFFF:04x}".encode()


class LlamaServer(Shape):
    path, owner, done = "/completion", "llamacpp", False
    marker = "<__media_q__>"

    def prompt(self) -> list[int]:
        given = self.body["prompt"]
        if isinstance(given, list):
            return given
        pieces = given["prompt_string"].split(self.marker)
        images = [image_digest(b64decode(each)).decode() for each in given["multimodal_data"]]
        assert len(images) == len(pieces) - 1, "the markers are those of another process"
        text = "".join(map("".join, zip(pieces, [*images, ""], strict=True)))
        return list(TOKENIZER.encode(text, special=True))

    def sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.body["n_predict"],
            ignore_eos=self.body.get("ignore_eos", False),
            logprobs=self.body.get("n_probs"),
        )

    def payloads(self, chunk: Chunk) -> Iterator[Json]:
        for place, id in enumerate(chunk.ids):
            self.count += 1
            reply: Json = {"index": 0, "content": "", "tokens": [id], "stop": False}
            reply["tokens_predicted"] = self.count
            if chunk.logprobs:
                each = chunk.logprobs[place]
                top = [{"id": t.id, "logprob": t.logprob} for t in each.top]
                reply["completion_probabilities"] = [
                    {"id": id, "logprob": each.logprob, "top_logprobs": top}
                ]
            yield reply
        if chunk.cached_tokens is not None:
            progress = {"total": len(self.prompt()), "cache": self.cached, "processed": 0}
            yield {"content": "", "tokens": [0], "stop": False, "prompt_progress": progress}
        if chunk.finish:
            kind = "limit" if chunk.finish == "length" else "eos"
            yield {"content": "", "tokens": [], "stop": True, "stop_type": kind}


SHAPES: dict[str, type[Shape]] = {
    "vllm": Vllm,
    "sglang": Sglang,
    "sglang, incremental": SglangIncremental,
    "tensorrt-llm": Trtllm,
    "llama-server": LlamaServer,
}


@asynccontextmanager
async def serving(
    shape: type[Shape], engine: ScriptedEngine, *, sees: bool = False, **facts: Any
) -> AsyncIterator[tuple[str, list[Json]]]:
    """Run a server of that format; yield its address and the request bodies it receives.

    ``sees``: its model accepts images. ``facts``: extra fields of the model's entry in the model
    list; ``more``: further entries. ``takes``: the constraint kind that it enforces, and its output
    then. ``dies_after``: it breaks the connection after that many chunks of each answer.
    """
    dies_after = facts.pop("dies_after", None)
    bodies: list[Json] = []
    more, (takes, word) = facts.pop("more", []), facts.pop("takes", (None, ""))
    reply = {
        "/get_model_info": {"has_image_understanding": sees},
        "/props": {"modalities": {"vision": sees}, "media_marker": LlamaServer.marker},
        "/tokenize": {"tokens": []},
    }

    async def tells(request: web.Request) -> web.Response:
        return web.json_response(reply[request.path])

    async def models(_: web.Request) -> web.Response:
        first = {"id": "m", "object": "model", "owned_by": shape.owner, **facts}
        return web.json_response({"object": "list", "data": [first, *more]})

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        reply = (VllmGenerate if request.path == VllmGenerate.path else shape)(body)
        if not body.get("stream"):  # it is only asked whether it is there
            return web.json_response({})
        speaks = engine
        if kind := reply.constraint_kind():
            if kind != takes:
                return web.json_response({"error": {"message": "what is that?"}}, status=400)
            speaks = ScriptedEngine([word])
        bodies.append(body)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunks = speaks.generate(Prompt(tuple(reply.prompt())), reply.sampling())
        async with aclosing(chunks):
            left = dies_after
            async for chunk in chunks:
                if left == 0 and request.transport is not None:
                    request.transport.close()
                    return response
                left = None if left is None else left - bool(chunk.ids)
                if chunk.cached_tokens is not None:
                    reply.cached = chunk.cached_tokens
                if chunk.ids or chunk.finish or isinstance(reply, LlamaServer):
                    await _write(response, reply.payloads(chunk))
        await _write(response, reply.finish())
        if reply.done:
            await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", models)
    app.router.add_post(shape.path, answer)
    app.router.add_get("/get_model_info", tells)
    app.router.add_get("/props", tells)
    app.router.add_post("/tokenize", tells)
    if sees and shape is Vllm:
        app.router.add_post(VllmGenerate.path, answer)
    async with TestServer(app, host="127.0.0.1", handler_cancellation=True) as server:
        yield f"http://127.0.0.1:{server.port}", bodies


async def _write(response: web.StreamResponse, payloads: Iterator[Json]) -> None:
    for payload in payloads:
        await response.write(f"data: {json.dumps(payload)}\n\n".encode())
