"""Encryption of values that clients hold: only unchanged ciphertext decrypts."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from antiphon.errors import SetupError
from antiphon.security import encryption as module
from antiphon.security.encryption import DecryptionError, EncryptionKey, Encryptor

OLD = EncryptionKey(id="2025", secret=b"o" * 32)
NEW = EncryptionKey(id="2026-01", secret=b"n" * 32)
CONTEXT: dict[str, Any] = {"purpose": "reasoning", "tenant": "team"}
ENCRYPTOR = Encryptor([OLD])
CIPHERTEXT = ENCRYPTOR.encrypt(b"some reasoning text " * 20, **CONTEXT)


@given(content=st.binary(max_size=2000), tenant=st.text(max_size=20), purpose=st.text(max_size=20))
def test_decrypt_returns_the_content(content: bytes, tenant: str, purpose: str) -> None:
    ciphertext = ENCRYPTOR.encrypt(content, purpose=purpose, tenant=tenant)
    assert ENCRYPTOR.decrypt(ciphertext, purpose=purpose, tenant=tenant) == content
    assert set(ciphertext) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    )


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_foreign_text_is_rejected(text: str) -> None:
    with pytest.raises(DecryptionError):
        ENCRYPTOR.decrypt(text, **CONTEXT)


@given(st.binary(max_size=200))
def test_random_bytes_behind_a_valid_header_are_rejected(raw: bytes) -> None:
    text = base64.urlsafe_b64encode(b"\x01\x042025" + raw).rstrip(b"=").decode()
    with pytest.raises(DecryptionError):
        ENCRYPTOR.decrypt(text, **CONTEXT)


@settings(max_examples=300)
@given(at=st.integers(0, len(CIPHERTEXT) - 1), bit=st.integers(0, 6))
def test_flipped_bit_is_rejected(at: int, bit: int) -> None:
    damaged = CIPHERTEXT[:at] + chr(ord(CIPHERTEXT[at]) ^ 1 << bit) + CIPHERTEXT[at + 1 :]
    with pytest.raises(DecryptionError):
        ENCRYPTOR.decrypt(damaged, **CONTEXT)


@given(st.integers(0, len(CIPHERTEXT) - 1))
def test_truncated_text_is_rejected(length: int) -> None:
    for damaged in (
        CIPHERTEXT[:length],
        CIPHERTEXT[length + 1 :],
        CIPHERTEXT + CIPHERTEXT[:length] + "A",
    ):
        with pytest.raises(DecryptionError):
            ENCRYPTOR.decrypt(damaged, **CONTEXT)


@given(*[st.text(max_size=6)] * 4)
def test_ciphertext_is_bound_to_purpose_and_tenant(
    one: str, two: str, three: str, four: str
) -> None:
    assume((one, two) != (three, four))
    ciphertext = ENCRYPTOR.encrypt(b"x", purpose=one, tenant=two)
    with pytest.raises(DecryptionError):
        ENCRYPTOR.decrypt(ciphertext, purpose=three, tenant=four)


def test_first_key_encrypts_and_all_keys_decrypt() -> None:
    both = Encryptor([NEW, OLD])
    assert both.decrypt(CIPHERTEXT, **CONTEXT) == ENCRYPTOR.decrypt(CIPHERTEXT, **CONTEXT)
    ciphertext = both.encrypt(b"x", **CONTEXT)
    assert Encryptor([NEW]).decrypt(ciphertext, **CONTEXT) == b"x"
    with pytest.raises(DecryptionError):
        ENCRYPTOR.decrypt(ciphertext, **CONTEXT)


def test_other_secret_with_the_same_id_is_rejected() -> None:
    with pytest.raises(DecryptionError):
        Encryptor([EncryptionKey(id=OLD.id, secret=NEW.secret)]).decrypt(CIPHERTEXT, **CONTEXT)


def test_ciphertexts_differ_and_hide_the_content() -> None:
    values = {ENCRYPTOR.encrypt(b"CANARY" * 9, **CONTEXT) for _ in range(20)}
    assert len(values) == 20
    raw = base64.urlsafe_b64decode(values.pop() + "==")
    assert raw.startswith(b"\x01\x042025") and b"CANARY" not in raw


def test_compressible_content_is_compressed() -> None:
    assert len(ENCRYPTOR.encrypt(b"again and again " * 1000, **CONTEXT)) < 500
    incompressible = bytes(range(256))
    assert len(ENCRYPTOR.encrypt(incompressible, **CONTEXT)) < 400


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\1" + zlib.compress(bytes(5000)), id="decompression bomb"),
        pytest.param(b"\1" + zlib.compress(b"x" * 50)[:-1], id="truncated"),
        pytest.param(b"\1" + zlib.compress(b"x") + b"more", id="trailing bytes"),
        pytest.param(b"\1no stream", id="not deflated"),
    ],
)
def test_invalid_compressed_streams_are_rejected(
    packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 4000)
    monkeypatch.setattr(module, "_PLAIN", packed[:1])  # it claims to be compressed
    ciphertext = ENCRYPTOR.encrypt(packed[1:], **CONTEXT)
    with pytest.raises(DecryptionError):
        ENCRYPTOR.decrypt(ciphertext, **CONTEXT)


def test_key_text_is_id_and_base64() -> None:
    secret = bytes(range(32))
    key = EncryptionKey.parse(f"2026-01:{base64.b64encode(secret).decode()}")
    assert (key.id, key.secret) == ("2026-01", secret)
    assert "2026-01" in repr(key) and "secret" not in repr(key)
    fresh, other = EncryptionKey.generate(), EncryptionKey.generate()
    assert fresh.id != other.id and EncryptionKey.from_secret(fresh.secret) == fresh


@pytest.mark.parametrize(
    "text", ["", "c2VjcmV0", "a:c2VjcmV0", "a:!!", "a:" + "A" * 44, ":" + "A" * 43 + "=", "ü:x"]
)
def test_invalid_key_error_does_not_show_it(text: str) -> None:
    with pytest.raises(SetupError) as raised:
        EncryptionKey.parse(text)
    assert "\n" not in str(raised.value) and "c2VjcmV0" not in str(raised.value)


def test_duplicate_key_ids_are_refused() -> None:
    for keys in ([], [OLD, EncryptionKey(id=OLD.id, secret=NEW.secret)]):
        with pytest.raises(SetupError):
            Encryptor(keys)


def test_digest_needs_the_key_and_separates_tenants() -> None:
    first, second = Encryptor([OLD]), Encryptor([NEW])
    digest = first.digest(b"x", purpose="p", tenant="ann")
    assert digest == Encryptor([OLD, NEW]).digest(b"x", purpose="p", tenant="ann")
    assert "ann" not in digest and len(digest) == 32
    others = (
        second.digest(b"x", purpose="p", tenant="ann"),
        first.digest(b"y", purpose="p", tenant="ann"),
        first.digest(b"x", purpose="q", tenant="ann"),
        first.digest(b"x", purpose="p", tenant="bob"),
    )
    assert len({digest, *others}) == 5
