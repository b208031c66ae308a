"""gpt-oss calls ``python`` and ``container.exec`` in the analysis channel; variables persist in one
container."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.engines.base import Sampling
from antiphon.inference.tokens import Chunk, Prompt
from antiphon.store.base import Store
from antiphon.tools.shell import ShellProvider
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import Ask
from tests.conformance.test_code_interpreter import CODE, OUTPUTS
from tests.dialects import gpt_oss
from tests.golden.models import CharacterTokenizer, ChunkPlayer
from tests.sandbox.real_sandboxes import SMALL, sandbox


class Turns(ChunkPlayer):
    """An engine that plays one reply per turn and records the prompts."""

    def __init__(self, *replies: str) -> None:
        super().__init__(((),), CharacterTokenizer(gpt_oss.encoding()), end="<|return|>")
        self._replies = list(replies)
        self.prompts: list[str] = []

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        pieces = b"".join(map(self.tokenizer.piece, prompt.ids))
        self.prompts.append(pieces.decode())
        text = self._replies.pop(0)
        ids = self.tokenizer.encode(text, special=True)
        yield Chunk(ids=tuple(ids), finish="stop")


def code(text: str) -> str:
    return f"<|channel|>analysis to=python code<|message|>{text}<|call|>"


def final(text: str) -> str:
    return f"<|channel|>final<|message|>{text}<|return|>"


@pytest.mark.requirement("GO-PYTHON")
async def test_variables_persist_between_turns(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    real = await sandbox(SMALL)
    scripted_engine = Turns(
        code("x = 6"), code("print(x * 7)"), final("42."), code("x += 1\nx"), final("7.")
    )
    backend = LocalBackend(scripted_engine, gpt_oss.dialect(today=lambda: datetime(2026, 1, 1)))
    async with containers(real, disk_bytes=SMALL.disk_bytes) as registry:
        server = serve(backend, on=store, **code_interpreter_options(registry))
        first = await ask_foreground(server, tools=[CODE], include=OUTPUTS)
        _, second, message = first.output
        assert (second["type"], second["code"]) == ("code_interpreter_call", "print(x * 7)")
        assert second["outputs"] == [{"type": "logs", "logs": "42\n"}]
        assert message["content"][0]["text"] == "42."
        later = await ask_foreground(
            server,
            tools=[CODE],
            include=OUTPUTS,
            input="And one more?",
            previous_response_id=first.terminal_response["id"],
        )
        third, _ = later.output
        assert third["outputs"] == [{"type": "logs", "logs": "7\n"}]
        assert third["container_id"] == second["container_id"]
    assert "## python" in scripted_engine.prompts[0]
    assert (
        "<|start|>python to=assistant<|channel|>analysis<|message|>42" in scripted_engine.prompts[2]
    )


@pytest.mark.requirement("GO-CONTAINER")
async def test_container_runs_what_the_model_writes_as_trained(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    real = await sandbox(SMALL)
    call = '{"cmd":["bash","-lc","echo $A > x; cat x"],"workdir":"/mnt/data","env":{"A":"hi"}}'
    scripted_engine = Turns(
        f"<|channel|>analysis to=container.exec code<|message|>{call}<|call|>", final("Done.")
    )
    backend = LocalBackend(scripted_engine, gpt_oss.dialect(today=lambda: datetime(2026, 1, 1)))
    async with containers(real, disk_bytes=SMALL.disk_bytes) as registry:
        providers = {"shell": ShellProvider(registry)}
        server = serve(backend, on=store, providers=providers, containers=registry)
        answer = await ask_foreground(server, tools=[{"type": "container"}])
    called, output, message = answer.output
    assert (called["type"], output["type"]) == ("shell_call", "shell_call_output")
    assert called["action"]["commands"] == ["cd /mnt/data || exit\nexport A=hi\necho $A > x; cat x"]
    assert output["output"][0]["stdout"] == "hi\n"
    assert message["content"][0]["text"] == "Done."
    first, second = scripted_engine.prompts
    assert "namespace container {" in first.partition("<|end|>")[0]
    assert "<|start|>container.exec to=assistant<|channel|>analysis<|message|>" in second
