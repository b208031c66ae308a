"""Stored prompts: merging with requests, and the folder of files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest, NotFound, RequestError, SetupError
from antiphon.inference.conversation import Conversation, Options
from antiphon.resources.prompts import Prompts
from antiphon.runs.background import jobs
from antiphon.runs.service import Service
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire import items as it
from antiphon.wire.parsing.requests import parse_create_prompt, parse_create_response
from antiphon.wire.resources.prompts import PromptResource
from antiphon.wire.response import Response
from tests.runs.scripted_service import create, make_service

SUPPORT = """
model = "gpt-5.5"
instructions = "You work for {{ company }}. Be {{tone}}."
temperature = 0.25
max_output_tokens = 77

[[input]]
role = "user"
content = "I am {{name}}."

[[input]]
role = "assistant"
content = "Hello {{name}}."

[[tools]]
type = "function"
name = "look_up"
parameters = { type = "object", properties = {} }
"""
VALUES = {"company": "Acme", "tone": "kind", "name": "Ann"}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}


def write_prompts(folder: Path, files: Mapping[str, str]) -> Prompts:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    prompts = Prompts(folder)
    prompts.check()
    return prompts


class PromptService:
    """A service with prompts, and the input its model received."""

    def __init__(self, prompts: Prompts) -> None:
        self.backend = ScriptedBackend(["ok"])
        self.service: Service = make_service(self.backend, MemoryStore(), prompts=prompts)

    async def __call__(self, **fields: Any) -> Response:
        body = {"input": "hi", **fields}
        body = {name: value for name, value in body.items() if value is not None}
        return await (
            await self.service.create("t", parse_create_response(json.dumps(body).encode()))
        ).drive()

    @property
    def last(self) -> tuple[Conversation, Options]:
        return self.backend.requests[-1]

    @property
    def texts(self) -> list[str]:
        return [
            f"{item.role}: " + "".join(getattr(part, "text", "<image>") for part in item.content)
            for item in self.last[0].items
            if isinstance(item, it.Message)
        ]


@pytest.fixture
def support(tmp_path: Path) -> PromptService:
    return PromptService(write_prompts(tmp_path, {"support/1.toml": SUPPORT}))


def ref(**more: Any) -> dict[str, Any]:
    return {"id": "support", "variables": VALUES, **more}


async def test_prompt_fills_fields_the_request_leaves_out(support: PromptService) -> None:
    response = await support(prompt=ref())
    conversation, options = support.last
    assert conversation.instructions == "You work for Acme. Be kind."
    assert support.texts == ["user: I am Ann.", "assistant: Hello Ann.", "user: hi"]
    assert options.temperature == 0.25 and options.max_output_tokens == 77
    assert [tool.name for tool in options.tools] == ["look_up"]  # type: ignore[union-attr]
    assert response.model == "gpt-5.5" and response.temperature == 0.25
    assert msgspec.to_builtins(response.prompt) == {**ref(), "version": "1"}
    message = msgspec.to_builtins(response.instructions)
    assert [item["role"] for item in message] == ["developer", "user", "assistant"]
    assert all(item["id"].startswith("msg_") for item in message)


async def test_request_fields_override_the_prompt(support: PromptService) -> None:
    tool = {"type": "function", "name": "other", "parameters": {}}
    response = await support(
        prompt=ref(), instructions="Mine.", temperature=1.5, tools=[tool], model="scripted"
    )
    conversation, options = support.last
    assert conversation.instructions == "Mine." and options.temperature == 1.5
    assert [tool.name for tool in options.tools] == ["other"]  # type: ignore[union-attr]
    assert response.model == "scripted" and options.max_output_tokens == 77
    assert support.texts[0] == "user: I am Ann."  # the messages are always the prompt's


async def test_prompt_applies_to_its_own_request_only(support: PromptService) -> None:
    first = await support(prompt=ref())
    await support(previous_response_id=first.id, input="more")
    assert support.texts == ["user: hi", "assistant: ok", "user: more"]
    assert support.last[0].instructions is None
    await support(prompt=ref(), previous_response_id=first.id, input="more")
    assert support.texts == [
        "user: I am Ann.",
        "assistant: Hello Ann.",
        "user: hi",
        "assistant: ok",
        "user: more",
    ]


async def test_prompt_without_input_is_enough(support: PromptService) -> None:
    await support(prompt=ref(), input=None)
    assert support.texts == ["user: I am Ann.", "assistant: Hello Ann."]


async def test_tool_choice_can_name_a_tool_of_the_prompt(support: PromptService) -> None:
    choice = {"type": "function", "name": "look_up"}
    await support(prompt=ref(), tool_choice=choice)
    with pytest.raises(InvalidRequest, match="not found in 'tools'"):
        await support(prompt=ref(), tool_choice={**choice, "name": "nobody"})


async def test_newest_version_is_the_default(tmp_path: Path) -> None:
    files = {f"p/{number}.toml": f'instructions = "v{number}"' for number in (1, 2, 9, 10)}
    prompt_service = PromptService(
        write_prompts(tmp_path, {**files, "p/3.json": '{"instructions": "v3"}'})
    )
    for version, expected in ((None, "v10"), ("9", "v9"), ("3", "v3")):
        response = await prompt_service(
            prompt={"id": "p", **({"version": version} if version else {})}
        )
        assert prompt_service.last[0].instructions == expected
        assert response.instructions == expected
        assert response.prompt.version == expected[1:]  # type: ignore[union-attr]


# --- variables -----------------------------------------------------------------------------------


async def test_image_replaces_its_variable(tmp_path: Path) -> None:
    text = """
[[input]]
role = "user"
content = "Compare {{one}}{{two}} with {{name}}: {{one}}"
"""
    prompt_service = PromptService(write_prompts(tmp_path, {"p/1.toml": text}))
    values = {"one": IMAGE, "two": {"type": "input_text", "text": "(two)"}, "name": "{{one}}"}
    await prompt_service(prompt={"id": "p", "variables": values}, input=None)
    (message,) = prompt_service.last[0].items
    assert isinstance(message, it.Message)
    assert list(msgspec.to_builtins(message.content)) == [
        {"type": "input_text", "text": "Compare "},
        IMAGE,
        {"type": "input_text", "text": "(two) with {{one}}: "},  # values are not read again
        IMAGE,
    ]


async def test_message_may_consist_of_a_variable(tmp_path: Path) -> None:
    text = '[[input]]\nrole = "user"\ncontent = "{{what}}"\n'
    prompt_service = PromptService(write_prompts(tmp_path, {"p/1.toml": text}))
    for value, parts in (("", [""]), ("x", ["x"]), (IMAGE, [None])):
        await prompt_service(prompt={"id": "p", "variables": {"what": value}}, input=None)
        (message,) = prompt_service.last[0].items
        assert [getattr(part, "text", None) for part in message.content] == parts  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prompt", "param", "code"),
    [
        (ref(variables={"company": "A", "tone": "b"}), "prompt.variables.name", "missing_required"
         "_parameter"),
        ({"id": "support"}, "prompt.variables.company", "missing_required_parameter"),
        (ref(variables={**VALUES, "x": "y"}), "prompt.variables.x", "unknown_parameter"),
        (ref(variables={**VALUES, "tone": IMAGE}), "prompt.variables.tone", "invalid_type"),
        (ref(variables={**VALUES, "tone": 1}), "prompt.variables.tone", "invalid_type"),
        (ref(variables={**VALUES, "tone": {"type": "refusal"}}), "prompt.variables.tone",
         "invalid_value"),
        (ref(variables=["a"]), "prompt.variables", "invalid_type"),
        (ref(id="nobody"), "prompt.id", "prompt_not_found"),
        (ref(id="../support"), "prompt.id", "prompt_not_found"),
        (ref(version="2"), "prompt.version", "prompt_not_found"),
        (ref(version="../1"), "prompt.version", "prompt_not_found"),
        ({"variables": {}}, "prompt.id", "missing_required_parameter"),
        ({"id": ""}, "prompt.id", "empty_string"),
        ({"id": 1}, "prompt.id", "invalid_type"),
        ("support", "prompt", "invalid_type"),
    ],
)  # fmt: skip
async def test_invalid_variables_are_refused_by_name(
    support: PromptService, prompt: Any, param: str, code: str
) -> None:
    with pytest.raises(RequestError) as raised:
        await support(prompt=prompt)
    assert (raised.value.param, raised.value.code) == (param, code)


async def test_unknown_model_of_a_prompt_is_named(tmp_path: Path) -> None:
    prompt_service = PromptService(write_prompts(tmp_path, {"p/1.toml": 'model = "gone"'}))
    with pytest.raises(NotFound) as raised:
        await prompt_service(prompt={"id": "p"})
    assert raised.value.code == "model_not_found"


async def test_prompt_without_text_requires_input(tmp_path: Path) -> None:
    prompt_service = PromptService(write_prompts(tmp_path, {"p/1.toml": "temperature = 1"}))
    with pytest.raises(InvalidRequest) as raised:
        await prompt_service(prompt={"id": "p"}, input=None)
    assert raised.value.param == "input"


async def test_no_folder_means_no_prompts() -> None:
    prompt_service = PromptService(Prompts())
    with pytest.raises(NotFound):
        await prompt_service(prompt={"id": "p"})
    assert (await prompt_service.service.prompts.list()).data == ()
    with pytest.raises(InvalidRequest):
        await prompt_service.service.prompts.create(
            parse_create_prompt(b'{"template": {"instructions": "x"}}')
        )


# --- the folder ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p/1.toml", "instructions = ", "cannot be read"),
        ("p/1.json", "[]", "cannot be read"),
        ("p/1.json", "{", "cannot be read"),
        ("p/1.toml", "instructons = 'x'", "Unknown parameter: 'instructons'"),
        ("p/1.toml", "temperature = 3", "temperature"),
        ("p/1.toml", "store = false", "Unknown parameter: 'store'"),
        ("p/1.toml", "[[input]]\ntype = 'item_reference'\nid = 'x'", "item_reference"),
        ("p/1.toml", "[[input]]\ntype = 'function_call'\ncall_id = 'c'\nname = 'f'\n"
         "arguments = '{}'", "No tool output"),
        ("p/draft.toml", "", "name it 1.toml"),
        ("p/01.toml", "", "name it 1.toml"),
        ("p.toml", "", "must be a folder"),
        ("p q/1.toml", "", "whose name has only letters"),
    ],
)  # fmt: skip
def test_invalid_prompt_file_is_refused_at_startup(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(SetupError) as raised:
        write_prompts(tmp_path, {name: text})
    assert message in str(raised.value) and str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value).strip()


async def test_file_damaged_after_startup_is_a_request_error(tmp_path: Path) -> None:
    prompt_service = PromptService(write_prompts(tmp_path, {"p/1.toml": "temperature = 1"}))
    for text in ("temperature = ", "temperature = 9", "unknown = 1"):
        (tmp_path / "p" / "1.toml").write_text(text)
        with pytest.raises(InvalidRequest) as raised:
            await prompt_service(prompt={"id": "p"})
        assert raised.value.param == "prompt.id"
    (tmp_path / "p" / "1.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest):
        await prompt_service(prompt={"id": "p"})


async def create_prompt(prompts: Prompts, **body: Any) -> PromptResource:
    return await prompts.create(parse_create_prompt(json.dumps(body).encode()))


async def test_version_is_created_listed_read_and_deleted(tmp_path: Path) -> None:
    prompts = Prompts(tmp_path / "new" / "folder")
    template = {"instructions": "Be {{tone}}.", "input": [{"role": "user", "content": "{{a}}"}]}
    first = await create_prompt(prompts, id="p", template=template)
    assert (first.id, first.version, first.versions) == ("p", "1", ("1",))
    assert first.template == template and first.variables == ("tone", "a")
    second = await create_prompt(prompts, id="p", template={"temperature": 1})
    assert second.versions == ("1", "2") and second.version == "2"
    other = await create_prompt(prompts, template={})
    assert other.id.startswith("pmpt_")
    listed = await prompts.list()
    assert [(each.id, each.version) for each in listed.data] == sorted(
        [("p", "2"), (other.id, "1")]
    )
    assert {listed.first_id, listed.last_id} == {"p", other.id}
    assert (await prompts.retrieve("p", "1")).template == template
    prompts.check()  # what was written here is what may be written by hand
    await prompts.delete("p", "2")
    assert (await prompts.retrieve("p")).version == "1"
    with pytest.raises(NotFound):
        await prompts.delete("p", "2")
    assert (
        await create_prompt(prompts, id="p", template={})
    ).version == "3"  # no number comes twice
    await prompts.delete("p")
    with pytest.raises(NotFound):
        await prompts.retrieve("p")
    with pytest.raises(NotFound):
        await prompts.delete("p")
    assert [each.id for each in (await prompts.list()).data] == [other.id]


async def test_concurrent_versions_are_all_stored(tmp_path: Path) -> None:
    prompts = Prompts(tmp_path)
    texts = [f"number {number}" for number in range(20)]
    found = await asyncio.gather(
        *(create_prompt(prompts, id="p", template={"instructions": text}) for text in texts)
    )
    assert sorted(int(each.version) for each in found) == list(range(1, 21))
    assert {(await prompts.retrieve("p", each.version)).template["instructions"]  # type: ignore[index]
            for each in found} == set(texts)  # fmt: skip
    assert not [path for path in (tmp_path / "p").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"id": "../x", "template": {}}, "id"),
        ({"id": "", "template": {}}, "id"),
        ({"id": ".x", "template": {}}, "id"),
        ({"id": "x" * 129, "template": {}}, "id"),
        ({"id": 5, "template": {}}, "id"),
        ({"id": "x"}, "template"),
        ({"id": "x", "template": []}, "template"),
        ({"id": "x", "template": {"nothing": 1}}, "template.nothing"),
        ({"id": "x", "template": {"temperature": 9}}, "template.temperature"),
        ({"id": "x", "template": {"input": [{"role": "me"}]}}, "template.input[0].role"),
        (
            {"id": "x", "template": {"input": [{"type": "compaction_trigger"}]}},
            "template.input[0].type",
        ),
    ],
)
async def test_invalid_template_is_refused(tmp_path: Path, body: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await create_prompt(Prompts(tmp_path), **body)
    assert raised.value.param == param
    assert list(tmp_path.iterdir()) == []


async def test_background_run_keeps_its_prompt_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_MAX_PREPARED", 0)  # as in another process
    prompts = write_prompts(tmp_path, {"p/1.toml": 'instructions = "one"'})
    prompt_service = PromptService(prompts)
    body = json.dumps({"input": "hi", "background": True, "prompt": {"id": "p"}}).encode()
    queued = await prompt_service.service.enqueue("t", parse_create_response(body))
    await create_prompt(prompts, id="p", template={"instructions": "two"})
    prompt_service.service.start()
    try:
        async with asyncio.timeout(60):
            while (
                await prompt_service.service.retrieve("t", queued.response.id)
            ).status != "completed":
                await asyncio.sleep(0)
    finally:
        await prompt_service.service.drain(0)
    assert [conversation.instructions for conversation, _ in prompt_service.backend.requests] == [
        "one",
        "one",
    ]


async def test_prompt_is_part_of_the_compacted_input(tmp_path: Path) -> None:
    prompt_service = PromptService(write_prompts(tmp_path, {"support/1.toml": SUPPORT}))
    talk = [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]
    response = await prompt_service(prompt=ref(), input=talk)
    assert prompt_service.texts[:2] == ["user: I am Ann.", "assistant: Hello Ann."]
    (item,) = msgspec.to_builtins(response.output)
    await prompt_service(input=[item])
    assert "user: I am Ann." not in prompt_service.texts  # they hold for their request only
    assert prompt_service.texts[0] == "user: hi"


async def test_request_without_prompt_reads_no_files(tmp_path: Path) -> None:
    prompt_service = PromptService(Prompts(tmp_path / "absent"))
    await create(prompt_service.service)
    assert not (tmp_path / "absent").exists()
