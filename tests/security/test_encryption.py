"""Sealed values: what was sealed is opened again, and nothing else ever is."""

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
FOR: dict[str, Any] = {"purpose": "reasoning", "tenant": "team"}
SEAL = Encryptor([OLD])
VALUE = SEAL.encrypt(b"what was thought " * 20, **FOR)


@given(content=st.binary(max_size=2000), tenant=st.text(max_size=20), purpose=st.text(max_size=20))
def test_what_was_sealed_is_opened(content: bytes, tenant: str, purpose: str) -> None:
    sealed = SEAL.encrypt(content, purpose=purpose, tenant=tenant)
    assert SEAL.decrypt(sealed, purpose=purpose, tenant=tenant) == content
    assert set(sealed) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_what_is_foreign_is_broken(text: str) -> None:
    with pytest.raises(DecryptionError):
        SEAL.decrypt(text, **FOR)


@given(st.binary(max_size=200))
def test_what_only_looks_like_ours_is_broken(raw: bytes) -> None:
    text = base64.urlsafe_b64encode(b"\x01\x042025" + raw).rstrip(b"=").decode()
    with pytest.raises(DecryptionError):
        SEAL.decrypt(text, **FOR)


@settings(max_examples=300)
@given(at=st.integers(0, len(VALUE) - 1), bit=st.integers(0, 6))
def test_a_flipped_bit_breaks_it(at: int, bit: int) -> None:
    damaged = VALUE[:at] + chr(ord(VALUE[at]) ^ 1 << bit) + VALUE[at + 1 :]
    with pytest.raises(DecryptionError):
        SEAL.decrypt(damaged, **FOR)


@given(st.integers(0, len(VALUE) - 1))
def test_a_part_of_it_is_broken(length: int) -> None:
    for damaged in (VALUE[:length], VALUE[length + 1 :], VALUE + VALUE[:length] + "A"):
        with pytest.raises(DecryptionError):
            SEAL.decrypt(damaged, **FOR)


@given(*[st.text(max_size=6)] * 4)
def test_it_is_bound_to_purpose_and_tenant(one: str, two: str, three: str, four: str) -> None:
    assume((one, two) != (three, four))
    sealed = SEAL.encrypt(b"x", purpose=one, tenant=two)
    with pytest.raises(DecryptionError):
        SEAL.decrypt(sealed, purpose=three, tenant=four)


def test_the_first_key_seals_and_all_open() -> None:
    both = Encryptor([NEW, OLD])
    assert both.decrypt(VALUE, **FOR) == SEAL.decrypt(VALUE, **FOR)
    sealed = both.encrypt(b"x", **FOR)
    assert Encryptor([NEW]).decrypt(sealed, **FOR) == b"x"
    with pytest.raises(DecryptionError):
        SEAL.decrypt(sealed, **FOR)


def test_another_secret_under_the_same_id_opens_nothing() -> None:
    with pytest.raises(DecryptionError):
        Encryptor([EncryptionKey(id=OLD.id, secret=NEW.secret)]).decrypt(VALUE, **FOR)


def test_no_two_are_alike_and_none_shows_its_content() -> None:
    values = {SEAL.encrypt(b"CANARY" * 9, **FOR) for _ in range(20)}
    assert len(values) == 20
    raw = base64.urlsafe_b64decode(values.pop() + "==")
    assert raw.startswith(b"\x01\x042025") and b"CANARY" not in raw


def test_long_content_is_compressed_where_that_pays() -> None:
    assert len(SEAL.encrypt(b"again and again " * 1000, **FOR)) < 500
    incompressible = bytes(range(256))
    assert len(SEAL.encrypt(incompressible, **FOR)) < 400


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"\1" + zlib.compress(bytes(5000)), id="a bomb"),
        pytest.param(b"\1" + zlib.compress(b"x" * 50)[:-1], id="cut"),
        pytest.param(b"\1" + zlib.compress(b"x") + b"more", id="with something behind it"),
        pytest.param(b"\1no stream", id="none"),
    ],
)
def test_even_from_a_holder_of_the_key_bad_streams_are_broken(
    packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 4000)
    monkeypatch.setattr(module, "_PLAIN", packed[:1])  # it claims to be compressed
    sealed = SEAL.encrypt(packed[1:], **FOR)
    with pytest.raises(DecryptionError):
        SEAL.decrypt(sealed, **FOR)


def test_keys_are_written_as_id_and_base64() -> None:
    secret = bytes(range(32))
    key = EncryptionKey.parse(f"2026-01:{base64.b64encode(secret).decode()}")
    assert (key.id, key.secret) == ("2026-01", secret)
    assert "2026-01" in repr(key) and "secret" not in repr(key)
    fresh, other = EncryptionKey.generate(), EncryptionKey.generate()
    assert fresh.id != other.id and EncryptionKey.from_secret(fresh.secret) == fresh


@pytest.mark.parametrize(
    "text", ["", "c2VjcmV0", "a:c2VjcmV0", "a:!!", "a:" + "A" * 44, ":" + "A" * 43 + "=", "ü:x"]
)
def test_a_bad_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(SetupError) as raised:
        EncryptionKey.parse(text)
    assert "\n" not in str(raised.value) and "c2VjcmV0" not in str(raised.value)


def test_keys_must_tell_apart() -> None:
    for keys in ([], [OLD, EncryptionKey(id=OLD.id, secret=NEW.secret)]):
        with pytest.raises(SetupError):
            Encryptor(keys)
