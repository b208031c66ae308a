"""The decoder of recordings and the encoder of speech. They need the extra ``audio``."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.audio.base import MEDIA_TYPES, SpeechTask
from antiphon.audio.decoding import AudioDecoder
from antiphon.audio.program import load
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.wire.resources.audio import AudioFormat

pytest.importorskip("av")

#: Writes a second of a tone for each word that it reads; with a header if asked to.
PROGRAM = """
import math, struct, sys
words = sys.stdin.read().split()
if "broken" in words: sys.exit(1)
tone = [int(9000 * math.sin(at / 5)) for at in range(16000 * len(words))]
data = struct.pack(f"<{len(tone)}h", *tone)
head = b""
if sys.argv[1] == "wav":
    head = b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack(
        "<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", len(data))
sys.stdout.buffer.write(head + data)
"""


def speaker(tmp_path: Path, form: str, **options: Any) -> Any:
    program = tmp_path / "speak.py"
    program.write_text(PROGRAM)
    return load("s", f"{sys.executable} {program} {form} {{voice}}", {"rate": 16_000, **options})


async def speak(speaker: Any, text: str = "one two", **fields: Any) -> bytes:
    task = SpeechTask(text=text, **{"voice": "alloy", **fields})
    return b"".join([piece async for piece in speaker.speak(task)])


@pytest.mark.parametrize("header", ["wav", "raw"])
@pytest.mark.parametrize("form", [each for each in MEDIA_TYPES if each != "pcm"])
async def test_speech_of_a_program_is_decoded_again(
    tmp_path: Path, form: AudioFormat, header: str
) -> None:
    sound = await speak(speaker(tmp_path, header), format=form)
    samples = await AudioDecoder(60).decode(sound)
    assert 2 * 32_000 <= len(samples) <= 2.2 * 32_000
    loudest = max(struct.unpack(f"<{len(samples) // 2}h", samples))
    assert 5_000 < loudest < 15_000


async def test_pcm_has_24000_samples_a_second(tmp_path: Path) -> None:
    assert len(await speak(speaker(tmp_path, "raw"), format="pcm")) == 2 * 48_000


async def test_fields_that_the_program_does_not_know_are_refused(tmp_path: Path) -> None:
    limited = speaker(tmp_path, "raw", voices={"alloy": "en"})
    fields: tuple[tuple[str, Any], ...] = (("voice", "../x"), ("speed", 2), ("instructions", "a"))
    for field, value in fields:
        with pytest.raises(InvalidRequest) as refusal:
            await speak(limited, **{field: value})
        assert refusal.value.param == field
    with pytest.raises(BackendError):
        await speak(limited, "broken")
    with pytest.raises(SetupError, match="there is no program"):
        load("s", "no-such-program {voice}", {})


@pytest.mark.parametrize(
    "content",
    [
        b"no audio",
        b"\0" * 1000,
        b"ffconcat version 1.0\nfile /etc/hostname\n",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
    ],
)
async def test_content_that_is_no_recording_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await AudioDecoder(60).decode(content)
    assert refusal.value.param == "file"


async def test_playlist_does_not_read_another_file(tmp_path: Path) -> None:
    other = tmp_path / "other.wav"
    other.write_bytes(await speak(speaker(tmp_path, "raw"), format="wav"))
    for playlist in (
        f"ffconcat version 1.0\nfile {other}\n",
        f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nfile://{other}\n#EXT-X-ENDLIST\n",
    ):
        with pytest.raises(InvalidRequest, match="no audio"):
            await AudioDecoder(60).decode(playlist.encode())


async def test_recording_that_is_too_long_is_refused(tmp_path: Path) -> None:
    sound = await speak(speaker(tmp_path, "raw"), "one two three", format="flac")
    with pytest.raises(InvalidRequest, match="longer than 2 seconds"):
        await AudioDecoder(2).decode(sound)
    assert io.BytesIO(await AudioDecoder(3).decode(sound)).getvalue()
