"""The parts of a request that a model cannot read."""

from __future__ import annotations

import pytest

from antiphon.backends.base import BackendCapabilities
from antiphon.inference.conversation import Conversation
from antiphon.runs.request.omitted_parts import find_omitted_parts, unread_types
from antiphon.wire import items as it

IMAGE = it.InputImage(image_url="data:image/png;base64,AA")
ITEMS = (
    it.Message(role="user", content=(IMAGE,)),
    it.Message(role="user", content=(it.InputText(text="See"), IMAGE)),
    it.FunctionCallOutput(call_id="a", output=(it.InputAudio(input_audio={}),)),
    it.FunctionCallOutput(call_id="b", output="text"),
    it.ComputerCallOutput(call_id="c", output=it.ComputerScreenshot(file_id="f")),
)


@pytest.mark.parametrize(
    ("capabilities", "params"),
    [
        (
            BackendCapabilities(),
            ["input[0].content[1]", "input[1].output[0]", "input[3].output"],
        ),
        (BackendCapabilities(images=True), ["input[1].output[0]"]),
        (BackendCapabilities(images=True, audio_video=True), []),
    ],
)
def test_unread_parts_of_the_request_are_found(
    capabilities: BackendCapabilities, params: list[str]
) -> None:
    conversation = Conversation(items=ITEMS, past_count=1)
    found = find_omitted_parts(conversation, unread_types(capabilities))
    assert [part.param for part in found] == params
