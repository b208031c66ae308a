"""Memory does not grow with the size of a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: Prints by how many MiB storing and reading 96 MiB has raised the peak of the memory.
_PROGRAM = """
import asyncio, itertools, os, resource, sys
from antiphon.blobs.locations import open_blobs
from antiphon.security.encryption import EncryptionKey, Encryptor

async def chunks(count):
    for _ in range(count):
        yield os.urandom(2**20)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

async def main():
    ids = map(str, itertools.count())
    blobs = open_blobs(
        f"file://{sys.argv[1]}", {}, root="store", encrypts=True,
        encryptor=Encryptor([EncryptionKey.generate()]), new_id=lambda: next(ids),
    )
    await blobs.put(chunks(17))
    before = peak()
    blob = await blobs.put(chunks(96))
    size = sum([len(piece) async for piece in blobs.read(blob)])
    assert size == blob.bytes == 96 * 2**20
    print(peak() - before)

asyncio.run(main())
"""


def test_peak_of_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(done.stdout) < 48, "MiB"
