"""Which URLs and options of object storage are accepted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from antiphon.blobs.locations import open_blobs
from antiphon.blobs.object_storage import ObjectBlobs
from antiphon.errors import SetupError
from antiphon.security.encryption import EncryptionKey, Encryptor

KEYS = {"access_key_id": "id", "secret_access_key": "CANARY"}


def opened(url: str, options: dict[str, str] | None = None) -> ObjectBlobs:
    return open_blobs(
        url,
        options or {},
        root="store",
        encryptor=Encryptor([EncryptionKey.generate()]),
        encrypts=False,
        new_id=lambda: "blob",
    )


def test_every_kind_of_storage_is_opened_with_an_address_and_credentials(tmp_path: Path) -> None:
    config = opened("s3://bucket/some/where", {**KEYS, "region": "eu-west-1"}).store.config
    assert config["endpoint"] == "https://s3.eu-west-1.amazonaws.com"
    config = opened("s3://bucket", {**KEYS, "endpoint": "http://127.0.0.1:1"}).store.config
    assert config["endpoint"] == "http://127.0.0.1:1"
    opened("az://container", {"account_name": "name", "account_key": "QUFB"})
    opened("gs://bucket", {"skip_signature": "true"})
    opened(f"file://{tmp_path}/new%20folder")
    assert (tmp_path / "new folder").is_dir()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("s3://bucket", {}, "files_options: s3:// needs credentials: access_key_id and secret_"),
        ("s3://bucket", KEYS, "files_options: s3:// needs endpoint or region"),
        ("s3://bucket", {"skip_signature": "false"}, "skip_signature must be true or not set"),
        ("s3://id:CANARY@bucket", KEYS, "with credentials in files_options"),
        ("s3://bucket", {**KEYS, "region": "a", "nonsense": "1"}, "'nonsense' is not valid"),
        ("gs://bucket", {}, "gs:// needs credentials"),
        ("az://container", {"account_key": "QUFB"}, "az:// needs endpoint or account_name"),
        ("ftp://host", {}, "files: 'ftp' is unknown"),
        ("folder", {}, "files: 'folder' is unknown"),
        ("file:///", {}, "name an absolute path"),
        ("file://relative/path", {}, "name an absolute path"),
        ("file:///proc/no/folder", {}, "/proc/no/folder cannot be used"),
    ],
)
def test_refused_location_says_what_to_do(url: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(SetupError) as refused:
        opened(url, options)
    assert message in str(refused.value)
    assert "CANARY" not in str(refused.value) and "\n" not in str(refused.value)


def test_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SetupError, match=r"object storage is not installed.*objects"):
        opened("s3://bucket", {**KEYS, "region": "eu-west-1"})
