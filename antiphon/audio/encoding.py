"""Encode speech in the formats of OpenAI's API. Every format has one channel and 24,000 samples a
second, as at OpenAI."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from typing import Any

from antiphon.wire.resources.audio import AudioFormat

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
