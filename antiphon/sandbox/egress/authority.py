"""A certificate authority that only one box (sandbox environment) trusts. With the authority's
certificates, the proxy of the box can read HTTPS requests."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

_VALID = timedelta(days=30)
_SKEW = timedelta(days=1)
#: Maximum number of hosts whose TLS contexts are cached. A box needs only the few hosts of its
#: allow-list.
_MAX_CONTEXTS = 256


class BoxAuthority:
    """A certificate authority that only one box (sandbox environment) trusts. With its
    certificates, the proxy can act as any HTTPS server toward the box. ``clock`` returns Unix
    seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.x509.oid import NameOID

        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Antiphon sandbox")])
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
            .add_extension(_key_usage(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        #: The certificate of the authority, in PEM.
        self.pem: bytes = certificate.public_bytes(Encoding.PEM)
        self._contexts: dict[str, ssl.SSLContext] = {}

    def context(self, host: str) -> ssl.SSLContext:
        """Return a TLS context with which the proxy can act as the server ``host``. Blocks the
        thread for a few milliseconds."""
        context = self._contexts.get(host)
        if context is None:
            if len(self._contexts) >= _MAX_CONTEXTS:
                self._contexts.clear()
            context = self._contexts[host] = self._make_context(host)
        return context

    def _make_context(self, host: str) -> ssl.SSLContext:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(x509.Name([]), key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(issuer, critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(Encoding.PEM) + key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        descriptor, path = tempfile.mkstemp()  # only this user may read it
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(pem)
            context.load_cert_chain(path)
        finally:
            os.unlink(path)
        return context

    def _builder(self, subject: Any, public_key: Any) -> Any:
        from cryptography import x509

        now = datetime.fromtimestamp(self._clock(), UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _VALID)
        )


def _key_usage() -> Any:
    """Return the key usage extension of the authority's certificate: this certificate may sign
    other certificates and revocation lists."""
    from cryptography import x509

    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: name in ("key_cert_sign", "crl_sign") for name in names})
