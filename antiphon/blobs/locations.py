"""Opens blob storage from a URL: ``s3://``, ``gs://``, ``az://`` or ``file:///``.

For cloud storage, credentials must be configured. Without them, obstore would request credentials
from the metadata address of cloud machines. If this address does not exist, such a request waits
for minutes. If it exists, obstore would use whatever credentials it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.security.encryption import Encryptor
from antiphon.support.installation import needs_packages

from .object_storage import ObjectBlobs


class _Service(Struct, frozen=True, kw_only=True):
    """A kind of object storage.

    - ``store``: the name of obstore's class.
    - ``credentials``: sets of option names. All options of one of the sets must be configured.
    - ``address``: names of options that say where the storage is. At least one of them must be
      configured. The first name in the tuple names the option that contains a URL.
    - ``default_address``: template of the URL that is used if the first option of ``address`` is
      not configured. Each option name in braces stands for the value of this option.
    """

    store: str
    credentials: tuple[tuple[str, ...], ...]
    address: tuple[str, ...] = ()
    default_address: str | None = None


_SERVICES: Mapping[str, _Service] = {
    "s3": _Service(
        store="S3Store",
        credentials=(
            ("access_key_id", "secret_access_key"),
            ("role_arn", "web_identity_token_file"),
            ("container_credentials_full_uri",),
            ("skip_signature",),
        ),
        address=("endpoint", "region"),
        default_address="https://s3.{region}.amazonaws.com",
    ),
    "gs": _Service(
        store="GCSStore",
        credentials=(
            ("service_account",),
            ("service_account_key",),
            ("application_credentials",),
            ("skip_signature",),
        ),
    ),
    "az": _Service(
        store="AzureStore",
        credentials=(
            ("account_key",),
            ("sas_key",),
            ("client_id", "client_secret", "tenant_id"),
            ("client_id", "federated_token_file", "tenant_id"),
            ("skip_signature",),
        ),
        address=("endpoint", "account_name"),
    ),
}
_VALID = '"store", s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER'

#: An object is a segment of a few megabytes. A storage that takes longer does not answer at all.
_CLIENT_OPTIONS = {"connect_timeout": "5s", "timeout": "60s"}
#: Values of options that are shorter than this are not treated as secrets.
_SECRET_CHARS = 6
#: Browsers download objects and never show them as pages of the storage's host.
_ATTRIBUTES = {"Content-Disposition": "attachment", "Content-Type": "application/octet-stream"}


def open_blobs(
    url: str,
    options: Mapping[str, str],
    *,
    root: str,
    encryptor: Encryptor,
    encrypts: bool,
    new_id: Callable[[], str],
) -> ObjectBlobs:
    """Open the blob storage at a URL. Does not connect yet.

    - ``options``: options of obstore for this kind of storage.
    - ``root``: prefix of the keys of all blobs; it identifies one Antiphon store.
    - ``encryptor``: encrypts new blobs and decrypts encrypted blobs.
    - ``encrypts``: whether new blobs are encrypted.
    - ``new_id``: returns a new random name.

    Raises ``SetupError``.
    """
    parts = urlsplit(url)
    folder = None
    if parts.scheme == "file":
        folder = _folder(url)
        store, attributes = _open_folder(folder), None
    elif parts.scheme in _SERVICES:
        store, attributes = _open_service(url, options), _ATTRIBUTES
    else:
        raise SetupError(f"files: {parts.scheme or url!r} is unknown: use {_VALID}")
    return ObjectBlobs(
        store,
        root,
        encryptor,
        encrypts=encrypts,
        new_id=new_id,
        folder=folder,
        attributes=attributes,
    )


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.strip("/"):
        raise SetupError("files: name an absolute path: file:///FOLDER")
    return Path(unquote(parts.path))


def _open_folder(folder: Path) -> Any:
    _check_installed()
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(folder, automatic_cleanup=True)
    except (BaseError, OSError) as error:
        reason = getattr(error, "strerror", None) or "obstore refuses it"
        raise SetupError(f"files: the folder {folder} cannot be used: {reason}") from None


def _open_service(url: str, options: Mapping[str, str]) -> Any:
    parts = urlsplit(url)
    service = _SERVICES[parts.scheme]
    if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise SetupError(f"files: use {_VALID}, with credentials in files_options")
    given = {name: value for name, value in options.items() if value}
    if given.get("skip_signature", "true") != "true":
        raise SetupError("files_options: skip_signature must be true or not set")
    if not any(all(name in given for name in names) for names in service.credentials):
        sets = ", or ".join(" and ".join(names) for names in service.credentials)
        raise SetupError(f"files_options: {parts.scheme}:// needs credentials: {sets}")
    if service.address and not any(name in given for name in service.address):
        raise SetupError(f"files_options: {parts.scheme}:// needs {' or '.join(service.address)}")
    if service.default_address is not None and service.address[0] not in given:
        given[service.address[0]] = service.default_address.format(**given)
    _check_installed()
    return _construct(service, parts.netloc, parts.path.strip("/"), given)


def _construct(service: _Service, bucket: str, prefix: str, options: Mapping[str, str]) -> Any:
    import obstore.store
    from obstore.exceptions import BaseError

    is_plain = any(value.startswith("http://") for value in options.values())
    arguments: dict[str, Any] = {
        **options,
        "client_options": {**_CLIENT_OPTIONS, "allow_http": is_plain},
        "retry_config": {"max_retries": 4, "retry_timeout": timedelta(seconds=60)},
    }
    try:
        return getattr(obstore.store, service.store)(bucket, prefix=prefix or None, **arguments)
    except (BaseError, ValueError, TypeError) as error:
        # The rest of the message shows the options.
        reason = str(error).partition("\n")[0]
        if any(value in reason for value in options.values() if len(value) >= _SECRET_CHARS):
            reason = "the options are invalid"
        raise SetupError(f"files_options: {reason}") from None


def _check_installed() -> None:
    with needs_packages("files: the client of object storage is not installed", "objects"):
        import obstore  # noqa: F401
