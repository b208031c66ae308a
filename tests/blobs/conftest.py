"""An S3 server in this process, and blobs in it and in a folder."""

from __future__ import annotations

import http.client
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon.blobs.locations import open_blobs
from antiphon.blobs.object_storage import ObjectBlobs
from antiphon.security.encryption import EncryptionKey, Encryptor

OpenBlobs = Callable[..., ObjectBlobs]


class S3Server:
    """An S3 server at ``endpoint``. ``bucket()`` makes a new bucket."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)
        self.endpoint = f"http://{host}:{port}"
        self._numbers = itertools.count()

    def bucket(self) -> str:
        name = f"bucket-{next(self._numbers)}"
        assert self.request("PUT", f"/{name}")[0] == 200
        return name

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        """Send a request. The server checks no signatures."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "id",
            "secret_access_key": "secret",
        }


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield S3Server(*server.get_host_and_port())
    finally:
        server.stop()


@pytest.fixture
def open_kind(request: pytest.FixtureRequest, tmp_path: Path) -> OpenBlobs:
    """Return a function that opens new blobs of a kind: s3 or folder."""
    encryptor = Encryptor([EncryptionKey.generate()])

    def open_new(kind: str, *, encrypts: bool = False) -> ObjectBlobs:
        numbers = itertools.count()
        url, options = f"file://{tmp_path}/blobs", {}
        if kind == "s3":
            server: S3Server = request.getfixturevalue("s3")
            url, options = f"s3://{server.bucket()}/some/where", server.options
        return open_blobs(
            url,
            options,
            root="store",
            encryptor=encryptor,
            encrypts=encrypts,
            new_id=lambda: f"blob{next(numbers)}",
        )

    return open_new
