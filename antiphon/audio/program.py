"""Speech by a program of the operator, such as Piper, espeak-ng or a script.

The program reads the text on its standard input, and writes audio with 16-bit samples and one
channel to its standard output: a WAV file, or samples without a header. Each text is read by a
process of its own, so a cancelled request ends at once, and the program's licence stays its own.
"""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import shutil
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import BackendError, SetupError
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.installation import require_package
from antiphon.support.processes import kill
from antiphon.wire.resources.audio import AudioFormat

from .base import SpeechTask, unsupported

_CHUNK_BYTES = 64 * 1024
#: Seconds without audio after which the program is ended.
_SILENCE_S = 60.0


class ProgramOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``engine_options`` of a program that reads texts aloud.

    - ``voices``: name of a voice in requests → what replaces ``{voice}`` in the command. If it is
      empty, the program has one voice, which every name selects.
    - ``rate``: samples a second of audio without a header.
    - ``parallel``: how many texts are read at a time.
    """

    voices: dict[str, str] = {}
    rate: Annotated[int, Meta(ge=8000, le=192_000)] = 22_050
    parallel: Annotated[int, Meta(ge=1)] = 2


def load(name: str, command: str, engine_options: Mapping[str, object]) -> ProgramSpeaker:
    """Return the speaker for a command. ``name``: the model's name in the settings. In the command,
    ``{voice}`` stands for the voice, ``{speed}`` for the speed, and ``{length}`` for its inverse,
    which Piper calls the length scale. Raises ``SetupError``."""
    try:
        options = msgspec.convert(dict(engine_options), ProgramOptions)
        words = shlex.split(command)
    except (msgspec.ValidationError, ValueError) as error:
        raise SetupError(f"models.{name}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise SetupError(f"model {name}: there is no program {(words or [''])[0]!r}")
    require_package("av", "The encoder of audio", "audio")
    return ProgramSpeaker(words, options)


class ProgramSpeaker:
    """``Speaker`` that starts a program for each text. ``command``: its words, with the
    placeholders of ``load``."""

    def __init__(self, command: Sequence[str], options: ProgramOptions) -> None:
        self._command = tuple(command)
        self._options = options
        self._slots = FairLimiter(options.parallel)

    async def speak(self, task: SpeechTask, *, tenant: str = "") -> AsyncGenerator[bytes, None]:
        command = self._words(task)
        async with self._slots.slot(tenant):
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_environment(),
            )
            assert process.stdin is not None and process.stdout is not None
            try:
                # One line: Piper and others read each line as a text of its own.
                process.stdin.write(" ".join(task.text.split()).encode() + b"\n")
                process.stdin.close()
                async for piece in self._encoded(process.stdout, task):
                    yield piece
                async with asyncio.timeout(_SILENCE_S):
                    status = await process.wait()
            except TimeoutError:
                raise BackendError("The program that reads aloud is silent.") from None
            finally:
                await kill(process)
        if status:
            raise BackendError("The program that reads aloud has failed.")

    async def _encoded(
        self, output: asyncio.StreamReader, task: SpeechTask
    ) -> AsyncGenerator[bytes, None]:
        """Yield the audio of the program in the format of the task."""
        rate, first = await self._start(output)
        encoder = await asyncio.to_thread(SpeechEncoder, task.format, rate)
        samples = first or await self._read(output)
        if not samples:
            raise BackendError("The program that reads aloud has given no audio.")
        while samples:
            if piece := await asyncio.to_thread(encoder.encode, samples):
                yield piece
            samples = await self._read(output)
        if piece := await asyncio.to_thread(encoder.finish):
            yield piece

    async def _start(self, output: asyncio.StreamReader) -> tuple[int, bytes]:
        """Read the header, if there is one. Returns the rate and the bytes after the header."""
        try:
            async with asyncio.timeout(_SILENCE_S):
                first = await output.readexactly(4)
                if first != b"RIFF":
                    return self._options.rate, first
                await output.readexactly(8)
                return await _wav_rate(output), b""
        except asyncio.IncompleteReadError as error:
            return self._options.rate, error.partial

    async def _read(self, output: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(_SILENCE_S):
            return await output.read(_CHUNK_BYTES)

    def _words(self, task: SpeechTask) -> list[str]:
        """Return the command for a task. Raises ``InvalidRequest``."""
        voices, command = self._options.voices, " ".join(self._command)
        if voices and task.voice not in voices:
            raise unsupported("voice", f"the voices are {', '.join(sorted(voices))}")
        if task.speed != 1 and "{speed}" not in command and "{length}" not in command:
            raise unsupported("speed", "this model reads at one speed")
        if task.instructions is not None:
            raise unsupported("instructions", "this model takes none")
        values = {
            "{voice}": voices.get(task.voice, ""),
            "{speed}": f"{task.speed:g}",
            "{length}": f"{1 / task.speed:g}",
        }
        return [_filled(word, values) for word in self._command]

    async def close(self) -> None:
        """Do nothing, because each process ends with its request."""


def _environment() -> dict[str, str]:
    """Return the environment of the program. The server's own variables may contain secrets."""
    path = os.pathsep.join(os.get_exec_path())
    return {"PATH": path, "HOME": str(Path.home()), "LC_ALL": "C.UTF-8"}


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


async def _wav_rate(output: asyncio.StreamReader) -> int:
    """Read the chunks of a WAV file up to its samples. Returns the rate. Raises ``BackendError``
    for another form than 16-bit samples with one channel."""
    rate = 0
    while True:
        name, size = struct.unpack("<4sI", await output.readexactly(8))
        if name == b"data":
            break
        content = await output.readexactly(min(size + size % 2, _CHUNK_BYTES))
        if name == b"fmt ":
            _, channels, rate, _, _, bits = struct.unpack("<HHIIHH", content[:16])
            if (channels, bits) != (1, 16):
                raise BackendError("The program that reads aloud must write 16-bit mono samples.")
    return int(rate)


_RATE = 24_000
#: Format → FFmpeg's container and codec. The formats without one need no encoder.
_CODECS: Mapping[AudioFormat, tuple[str, str]] = {
    "mp3": ("mp3", "libmp3lame"),
    "opus": ("ogg", "libopus"),
    "aac": ("adts", "aac"),
    "flac": ("flac", "flac"),
}
#: The length of a stream that is still being written.
_UNKNOWN_LENGTH = 0xFFFFFFFF


class _Pipe(io.RawIOBase):
    """A file that cannot be rewound, as FFmpeg's writer. ``take`` returns what was written."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()

    def write(self, data: Any) -> int:
        self._written += data
        return len(data)

    def writable(self) -> bool:
        return True

    def take(self) -> bytes:
        written, self._written = bytes(self._written), bytearray()
        return written


class SpeechEncoder:
    """Encodes samples while they arrive. ``rate``: samples a second of the input, which has 16-bit
    samples and one channel. The methods block, for a time that grows with their input."""

    def __init__(self, form: AudioFormat, rate: int) -> None:
        import av

        self._av: Any = av
        self._rate = rate
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=_RATE)
        self._odd = b""  # half of a sample
        self._pipe = _Pipe()
        self._container: Any = None
        if form in _CODECS:
            container, codec = _CODECS[form]
            self._container = av.open(self._pipe, "w", format=container)
            self._stream = self._container.add_stream(codec, rate=_RATE)
            self._stream.codec_context.layout = "mono"
        elif form == "wav":
            self._pipe.write(_wav_header())

    def encode(self, samples: bytes) -> bytes:
        """Return the encoded bytes that further samples complete."""
        samples = self._odd + samples
        whole = len(samples) - len(samples) % 2
        self._odd = samples[whole:]
        if whole:
            frame = self._av.AudioFrame(format="s16", layout="mono", samples=whole // 2)
            frame.sample_rate = self._rate
            frame.planes[0].update(samples[:whole].ljust(frame.planes[0].buffer_size, b"\0"))
            self._write(self._resampler.resample(frame))
        return self._pipe.take()

    def finish(self) -> bytes:
        """Return the last encoded bytes."""
        self._write(self._resampler.resample(None))
        if self._container is not None:
            for packet in self._stream.encode(None):
                self._container.mux(packet)
            self._container.close()
        return self._pipe.take()

    def _write(self, frames: list[Any]) -> None:
        for frame in frames:
            if self._container is None:
                self._pipe.write(bytes(frame.planes[0])[: frame.samples * 2])
                continue
            frame.pts = None
            for packet in self._stream.encode(frame):
                self._container.mux(packet)


def _wav_header() -> bytes:
    """Return the header of a WAV stream, whose length is unknown when it begins."""
    form = struct.pack("<HHIIHH", 1, 1, _RATE, 2 * _RATE, 2, 16)
    return (
        b"RIFF"
        + struct.pack("<I", _UNKNOWN_LENGTH)
        + b"WAVEfmt "
        + struct.pack("<I", len(form))
        + form
        + b"data"
        + struct.pack("<I", _UNKNOWN_LENGTH)
    )
