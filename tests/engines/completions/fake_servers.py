"""Servers that continue token ids, in the shapes of vLLM, SGLang, TensorRT-LLM and llama-server,
around an engine without a model. The shapes are theirs: bodies and payloads as they are sent, with
what clients do not read left out."""

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
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tokens import Chunk, Prompt, TokenLogprob

Json = dict[str, Any]
TOKENIZER = ByteTokenizer(["<image>"])
#: What a template writes for an image.
WORD = TOKENIZER.special["<image>"]


class Shape:
    """How one server speaks. ``payloads`` gives those of one chunk."""

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
        )

    def payloads(self, chunk: Chunk) -> Iterator[Json]:
        raise NotImplementedError

    def held(self) -> str | None:
        """The kind of constraint that is asked for."""
        params = self.body.get("sampling_params", self.body)
        asked = params.get("structured_outputs", params)
        form = asked.get("response_format", asked)
        if text := asked.get("grammar") or form.get("ebnf"):
            return "ebnf" if "::=" in text else "lark"
        fields = {"json", "json_schema", "response_format"}
        return None if fields.isdisjoint(asked) else "schema"

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
            # besides the best, the sampled one is always there
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
    #: All that its requests may hold: others are refused.
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
        return shown(self.body["input_ids"], self.body.get("image_data", ()))

    def sampling(self) -> Sampling:
        params = self.body["sampling_params"]
        return Sampling(
            max_tokens=params["max_new_tokens"],
            stop_ids=tuple(params.get("stop_token_ids", ())),
            ignore_eos=params.get("ignore_eos", False),
            logprobs=self.body.get("top_logprobs_num"),
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
    """vLLM's other address, for prompts with images."""

    path = "/inference/v1/generate"

    def prompt(self) -> list[int]:
        return shown(self.body["token_ids"], [p["url"] for p in self.body.get("content_parts", ())])

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


def shown(ids: Iterable[int], urls: Iterable[str]) -> list[int]:
    """The ids with what a processor makes of an image in the place of each word for one: four
    tokens that tell which image it is."""
    images = [marked(b64decode(url.partition(",")[2])) for url in urls]
    made: list[int] = []
    for id in ids:
        made += images.pop(0) if images and id == WORD else [id]
    assert not images, "more images than words for them"
    return made


def marked(image: bytes) -> bytes:
    return f"{crc32(image) & 0xFFFF:04x}".encode()


class LlamaServer(Shape):
    path, owner, done = "/completion", "llamacpp", False
    marker = "<__media_q__>"

    def prompt(self) -> list[int]:
        given = self.body["prompt"]
        if isinstance(given, list):
            return given
        pieces = given["prompt_string"].split(self.marker)
        images = [marked(b64decode(each)).decode() for each in given["multimodal_data"]]
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
            told: Json = {"index": 0, "content": "", "tokens": [id], "stop": False}
            told["tokens_predicted"] = self.count
            if chunk.logprobs:
                each = chunk.logprobs[place]
                top = [{"id": t.id, "logprob": t.logprob} for t in each.top]
                told["completion_probabilities"] = [
                    {"id": id, "logprob": each.logprob, "top_logprobs": top}
                ]
            yield told
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
    """A server of that shape: its address, and the bodies it was sent. ``sees``: its model sees
    images. ``facts``: what it says of its model in the list, besides; ``more``: further entries.
    ``takes``: the kind of constraints that it takes, and what it says then."""
    bodies: list[Json] = []
    more, (takes, word) = facts.pop("more", []), facts.pop("takes", (None, ""))
    told = {
        "/get_model_info": {"has_image_understanding": sees},
        "/props": {"modalities": {"vision": sees}, "media_marker": LlamaServer.marker},
        "/tokenize": {"tokens": []},
    }

    async def tells(request: web.Request) -> web.Response:
        return web.json_response(told[request.path])

    async def models(_: web.Request) -> web.Response:
        first = {"id": "m", "object": "model", "owned_by": shape.owner, **facts}
        return web.json_response({"object": "list", "data": [first, *more]})

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        told = (VllmGenerate if request.path == VllmGenerate.path else shape)(body)
        if not body.get("stream"):  # it is only asked whether it is there
            return web.json_response({})
        speaks = engine
        if kind := told.held():
            if kind != takes:
                return web.json_response({"error": {"message": "what is that?"}}, status=400)
            speaks = ScriptedEngine([word])
        bodies.append(body)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunks = speaks.generate(Prompt(tuple(told.prompt())), told.sampling())
        async with aclosing(chunks):
            async for chunk in chunks:
                if chunk.cached_tokens is not None:
                    told.cached = chunk.cached_tokens
                if chunk.ids or chunk.finish or isinstance(told, LlamaServer):
                    await _write(response, told.payloads(chunk))
        await _write(response, told.finish())
        if told.done:
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
