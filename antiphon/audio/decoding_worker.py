"""Program that decodes one recording on its standard input, and prints its samples.

It prints ``BROKEN`` for a content that is no audio, and ``LONG`` for a recording that is longer
than its argument, in seconds. The markers have odd lengths, so they are no samples.
"""

from __future__ import annotations

import io
import os
import sys

from antiphon.attachments.document_worker import confine

BROKEN, LONG = b"broken!", b"long!"
SAMPLE_RATE, SAMPLE_BYTES = 16_000, 2
#: FFmpeg's readers that may open a file. Others read playlists, which name further files and URLs.
_READERS = (
    "aac,ac3,aiff,amr,asf,au,caf,flac,matroska,mov,mp3,mp4,mpeg,mpegts,ogg,w64,wav,webm,m4a,3gp,avi"
)
_OPTIONS = {"format_whitelist": _READERS, "protocol_whitelist": "none"}
_WAV_OF_SILENCE = (
    b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\x04\0\0\0"
    + bytes(4)
)


def main(max_seconds: int) -> bytes:
    """Return what the program prints."""
    _decode(_WAV_OF_SILENCE, 1)  # imports and registers everything before confine()
    content = sys.stdin.buffer.read()
    confine()
    return _decode(content, max_seconds)


def _decode(content: bytes, max_seconds: int) -> bytes:
    import av

    samples, limit = bytearray(), max_seconds * SAMPLE_RATE * SAMPLE_BYTES
    try:
        with av.open(
            io.BytesIO(content), metadata_errors="ignore", container_options=_OPTIONS
        ) as source:
            if not source.streams.audio:
                return BROKEN
            resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
            for frame in source.decode(source.streams.audio[0]):
                frame.pts = None
                for part in resampler.resample(frame):
                    samples += bytes(part.planes[0])[: part.samples * SAMPLE_BYTES]
                if len(samples) > limit:
                    return LONG
            for part in resampler.resample(None):
                samples += bytes(part.planes[0])[: part.samples * SAMPLE_BYTES]
    except (av.FFmpegError, ValueError, MemoryError):
        return bytes(samples) or BROKEN  # a truncated recording is decoded as far as possible
    return bytes(samples)


if __name__ == "__main__":
    output = os.dup(1)
    os.dup2(2, 1)  # output of a library must not mix with the result
    result = main(int(sys.argv[1]))
    with open(output, "wb") as out:
        out.write(result)
