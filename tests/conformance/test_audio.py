"""The Audio API, through the official client."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import openai
import pytest
from openai.types.audio import TranscriptionVerbose

from antiphon.backends.reading import SpeechBackend, TranscriptionBackend
from antiphon.errors import BackendError
from antiphon.models.catalog import Catalog, ServedModel
from antiphon.upstream.multipart import FormFile, encode_form
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import NOW, Server, engine
from tests.fakes.audio import WordSpeaker, WordTranscriber

Json = dict[str, Any]
SPOKEN = b"The door is open. Come in."
FILE = ("said.wav", SPOKEN)


@pytest.fixture
def transcriber() -> WordTranscriber:
    return WordTranscriber()


@pytest.fixture
def speaker() -> WordSpeaker:
    return WordSpeaker()


@pytest.fixture
def script(transcriber: WordTranscriber) -> TranscriptionBackend:
    return TranscriptionBackend("tiny", transcriber)


@pytest.fixture
async def speaking(serve: Serve, speaker: WordSpeaker) -> Server:
    return serve(SpeechBackend("tiny", speaker))


@pytest.mark.requirement("AU-TRANSCRIBE")
async def test_recording_is_written_down_in_each_format(
    server: Server, client_of: Clients, transcriber: WordTranscriber
) -> None:
    create = client_of(server.app).audio.transcriptions.create
    plain = await create(model="tiny", file=FILE, language="en", prompt="A visit", temperature=0.5)
    assert plain.text == SPOKEN.decode()
    assert plain.usage is not None and plain.usage.type == "duration" and plain.usage.seconds == 6
    task = transcriber.tasks[0]
    assert (task.language, task.prompt, task.temperature) == ("en", "A visit", 0.5)
    assert task.filename == "said.wav" and not task.has_segments
    text = await create(model="tiny", file=FILE, response_format="text")
    assert text == SPOKEN.decode() + "\n"
    srt = await create(model="tiny", file=FILE, response_format="srt")
    assert srt == (
        "1\n00:00:00,000 --> 00:00:04,000\nThe door is open.\n\n"
        "2\n00:00:04,000 --> 00:00:06,000\nCome in.\n"
    )
    vtt = await create(model="tiny", file=FILE, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:04.000\nThe door is open.\n\n")


@pytest.mark.requirement("AU-TRANSCRIBE")
async def test_verbose_transcript_has_the_times_that_are_asked_for(
    server: Server, client_of: Clients
) -> None:
    create = client_of(server.app).audio.transcriptions.create
    verbose = await create(model="tiny", file=FILE, response_format="verbose_json")
    TranscriptionVerbose.model_validate(verbose.model_dump(), strict=True)
    assert (verbose.language, verbose.duration, verbose.words) == ("english", 6, None)
    assert [(each.id, each.start, each.end) for each in verbose.segments or ()] == [
        (0, 0, 4),
        (1, 4, 6),
    ]
    words = await create(
        model="tiny",
        file=FILE,
        response_format="verbose_json",
        timestamp_granularities=["word"],
    )
    assert [each.word for each in words.words or ()] == ["The", "door", "is", "open", "Come", "in"]
    assert words.segments is None


@pytest.mark.requirement("AU-STREAM")
async def test_transcript_is_streamed(server: Server, client_of: Clients) -> None:
    stream = await client_of(server.app).audio.transcriptions.create(
        model="tiny", file=FILE, stream=True
    )
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        "transcript.text.delta",
        "transcript.text.delta",
        "transcript.text.done",
    ]
    assert "".join(getattr(event, "delta", "") for event in events) == SPOKEN.decode()
    assert events[-1].type == "transcript.text.done" and events[-1].text == SPOKEN.decode()


@pytest.mark.requirement("AU-TRANSLATE")
async def test_recording_is_translated(
    server: Server, client_of: Clients, transcriber: WordTranscriber
) -> None:
    create = client_of(server.app).audio.translations.create
    with pytest.warns(DeprecationWarning):
        found = await create(model="tiny", file=FILE, response_format="verbose_json")
    assert found.language == "english" and found.text == SPOKEN.decode()
    assert transcriber.tasks[0].translates


@pytest.mark.requirement("AU-SPEECH")
@pytest.mark.parametrize(
    ("form", "media_type"), [("mp3", "audio/mpeg"), ("wav", "audio/wav"), ("opus", "audio/ogg")]
)
async def test_text_is_read_aloud(
    speaking: Server, client_of: Clients, speaker: WordSpeaker, form: Any, media_type: str
) -> None:
    answer = await client_of(speaking.app).audio.speech.create(
        model="tiny", voice="alloy", input="Come in", response_format=form, speed=1.5
    )
    assert answer.content == b"[Come][in]"
    assert answer.response.headers["content-type"] == media_type
    assert (speaker.tasks[0].format, speaker.tasks[0].speed) == (form, 1.5)


@pytest.mark.requirement("AU-SPEECH")
async def test_speech_is_streamed_as_events(speaking: Server) -> None:
    body = {"model": "tiny", "voice": {"id": "alloy"}, "input": "Come in", "stream_format": "sse"}
    reply = await speaking.client.post("/v1/audio/speech", json=body)
    encoded = base64.b64encode(b"[in]").decode()
    assert f'data: {{"type":"speech.audio.delta","audio":"{encoded}"}}' in reply.text
    assert reply.text.endswith('data: {"type":"speech.audio.done"}\n\n')


@pytest.mark.requirement("AU-REFUSED")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "2"}, "temperature"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "line"}, "timestamp_granularities"),
        ({"stream": "perhaps"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"include[]": "logprobs"}, "include"),
        ({"known_speaker_names[]": "A"}, "known_speaker_names"),
        ({"language": "xx"}, "language"),
        ({"model": "none"}, "model"),
    ],
)
async def test_faulty_field_of_a_form_is_named(server: Server, fields: Json, param: str) -> None:
    form = {"model": "tiny", **fields}
    reply = await server.client.post(
        "/v1/audio/transcriptions", data=form, files={"file": ("../../a.wav", SPOKEN)}
    )
    assert reply.status_code in (400, 404), reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.requirement("AU-REFUSED")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": {}}, "voice.id"),
        ({"voice": None}, "voice"),
        ({"speed": 5}, "speed"),
        ({"response_format": "midi"}, "response_format"),
        ({"pitch": 1}, "pitch"),
    ],
)
async def test_faulty_field_of_speech_is_named(speaking: Server, fields: Json, param: str) -> None:
    body = {"model": "tiny", "voice": "alloy", "input": "Come in", **fields}
    reply = await speaking.client.post("/v1/audio/speech", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.requirement("AU-REFUSED")
async def test_bad_recordings_are_refused(server: Server, client_of: Clients) -> None:
    create = client_of(server.app).audio.transcriptions.create
    for content in (b"", b"\xff\xfe"):
        with pytest.raises(openai.BadRequestError) as refusal:
            await create(model="tiny", file=("a.wav", content))
        assert refusal.value.param == "file"
    with pytest.raises(openai.BadRequestError) as refusal:
        await create(model="tiny", file=("a.wav", b"\xff\xfe"), stream=True)
    assert refusal.value.param == "file"
    reply = await server.client.post("/v1/audio/transcriptions", data={"model": "tiny"})
    assert reply.status_code == 400
    with pytest.raises(openai.BadRequestError) as refusal:
        await client_of(server.app).audio.speech.create(model="tiny", voice="alloy", input="x")
    assert refusal.value.code == "unsupported_model"


@pytest.mark.requirement("AU-REFUSED")
async def test_failures_are_errors(
    server: Server,
    speaking: Server,
    client_of: Clients,
    transcriber: WordTranscriber,
    speaker: WordSpeaker,
) -> None:
    transcriber.error = speaker.error = BackendError("It broke.")
    create = client_of(server.app).audio.transcriptions.create
    with pytest.raises(openai.InternalServerError, match="It broke"):
        await create(model="tiny", file=FILE)
    stream = await create(model="tiny", file=FILE, stream=True)
    with pytest.raises(openai.APIError, match="It broke"):
        [event async for event in stream]
    body = {"model": "tiny", "voice": "alloy", "input": "Come in", "stream_format": "sse"}
    reply = await speaking.client.post("/v1/audio/speech", json=body)
    assert "event: error" in reply.text and "It broke." in reply.text


@pytest.mark.requirement("AU-LIMITS")
async def test_large_recording_is_refused(
    serve: Serve, client_of: Clients, transcriber: WordTranscriber
) -> None:
    server = serve(TranscriptionBackend("tiny", transcriber), max_audio_bytes=1000)
    create = client_of(server.app).audio.transcriptions.create
    with pytest.raises(openai.APIStatusError) as refusal:
        await create(model="tiny", file=("a.wav", b"a. " * 400))
    assert refusal.value.status_code == 413 and not transcriber.tasks


@pytest.mark.requirement("AU-LIMITS")
@pytest.mark.parametrize("stream", ["true", "false"])
async def test_client_that_leaves_ends_the_work(
    server: Server, transcriber: WordTranscriber, stream: str
) -> None:
    transcriber.pause.clear()
    file = FormFile(field="file", filename="a.wav", media_type="audio/wav", content=SPOKEN)
    kind, body = encode_form({"model": "tiny", "stream": stream}, [file])
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        while not messages and not transcriber.tasks:
            await asyncio.sleep(0)
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Lose what the server sends."""

    headers = [(b"host", b"localhost"), (b"content-type", kind.encode())]
    path = "/v1/audio/transcriptions"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    async with asyncio.timeout(20):
        await server.app({**scope, "headers": headers}, receive, send)
    assert transcriber.closings == 1


@pytest.mark.requirement("AU-LIMITS")
async def test_usage_counts_seconds_and_characters(
    server: Server, speaking: Server, client_of: Clients
) -> None:
    form = {"model": "tiny"}
    await server.client.post("/v1/audio/transcriptions", data=form, files={"file": FILE})
    body = {"model": "tiny", "voice": "alloy", "input": "Come in"}
    await speaking.client.post("/v1/audio/speech", json=body)
    heard = (
        client_of(server.app)
        .copy(admin_api_key="none")
        .admin.organization.usage.audio_transcriptions
    )
    [seconds] = (await heard(start_time=NOW, group_by=["model"])).data[0].results
    assert seconds.object == "organization.usage.audio_transcriptions.result"
    assert (seconds.seconds, seconds.num_model_requests, seconds.model) == (6, 1, "tiny")
    said = (
        client_of(speaking.app).copy(admin_api_key="none").admin.organization.usage.audio_speeches
    )
    [characters] = (await said(start_time=NOW)).data[0].results
    assert characters.object == "organization.usage.audio_speeches.result"
    assert (characters.characters, characters.num_model_requests) == (7, 1)
    for each in (server, speaking):  # neither seconds nor characters are tokens
        costs = await each.get("organization/costs", **{"start_time": NOW, "group_by": "line_item"})
        assert [bucket["results"] for bucket in costs.json()["data"]] == [[]]


@pytest.mark.requirement("AU-INPUT")
async def test_recording_in_a_request_is_written_down_for_a_model_that_cannot_hear(
    serve: Serve, client_of: Clients, transcriber: WordTranscriber
) -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "Welcome."

    server = serve(engine(answer), audio_input="hears")
    [tiny] = server.dependencies.models.all()
    hears = ServedModel(name="hears", backend=TranscriptionBackend("hears", transcriber), created=1)
    models = server.dependencies.models
    assert isinstance(models, Catalog) and isinstance(tiny, ServedModel)
    models.replace(Catalog((tiny, hears)))
    client = client_of(server.app)
    first = await client.responses.create(model="tiny", input=[recording(SPOKEN)])
    assert first.status == "completed" and "The door is open. Come in." in prompts[0]
    assert not getattr(first, "omitted_parts", None)
    await client.responses.create(model="tiny", input="And?", previous_response_id=first.id)
    assert prompts[1].startswith(prompts[0]) and len(transcriber.tasks) == 1
    items = await server.client.get(f"/v1/responses/{first.id}/input_items")
    assert items.json()["data"][0]["content"] == recording(SPOKEN)["content"]
    await client.chat.completions.create(model="tiny", messages=[recording(SPOKEN)])
    assert transcriber.tenants == ["default"]
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.responses.create(model="tiny", input=[recording(b"\xff\xfe")])
    assert refusal.value.param == "input[0].content[0].input_audio.data"


@pytest.mark.requirement("AU-INPUT")
async def test_recording_is_refused_without_a_model_that_hears(
    serve: Serve, client_of: Clients
) -> None:
    server = serve(engine(lambda prompt: "Welcome."))
    with pytest.raises(openai.BadRequestError) as refusal:
        await client_of(server.app).responses.create(model="tiny", input=[recording(SPOKEN)])
    assert refusal.value.param == "input[0].content[0]"


def recording(content: bytes) -> Any:
    sound = {"data": base64.b64encode(content).decode(), "format": "wav"}
    return {"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}
