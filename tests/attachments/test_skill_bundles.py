"""Skill bundles: valid skills, and attacks through zips."""

from __future__ import annotations

import io
import stat
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.attachments.skill_bundles import (
    BundleFile,
    BundleLimits,
    InvalidBundle,
    make_bundle,
    pack,
    unpack,
)

SKILL = b"---\nname: sums\ndescription: Adds numbers.\n---\nRun add.py.\n"


def zipped(files: dict[str, bytes], **more: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for field, value in more.items():
                setattr(info, field, value)
            archive.writestr(info, content)
    return out.getvalue()


@pytest.mark.parametrize("folder", ["", "sums/", "./sums/", "other name/"])
def test_bundle_is_read_from_a_zip(folder: str) -> None:
    content = zipped(
        {
            f"{folder}SKILL.md": SKILL,
            f"{folder}lib/add.py": b"x",
            f"{folder}.DS_Store": b"",
            "__MACOSX/._SKILL.md": b"",
        }
    )
    found = make_bundle(unpack(content))
    assert (found.name, found.description) == ("sums", "Adds numbers.")
    assert {path: each.content for path, each in found.files.items()} == {
        "SKILL.md": SKILL,
        "lib/add.py": b"x",
    }


def test_packed_bundle_keeps_executables_and_has_one_folder() -> None:
    files = {"skill.md": BundleFile(SKILL), "add.sh": BundleFile(b"#!/bin/sh", is_executable=True)}
    found = make_bundle(files)
    again = unpack(pack(found))
    assert set(again) == {"sums/SKILL.md", "sums/add.sh"}
    assert again["sums/add.sh"].is_executable and not again["sums/SKILL.md"].is_executable
    assert make_bundle(again) == found and pack(found) == pack(make_bundle(again))


@pytest.mark.parametrize(
    "path",
    [
        "../a",
        "a/../../b",
        "/etc/passwd",
        "a//b",
        "a/./b",
        "..\\a",
        "a/b\x01",
        "a\x7f",
        "x" * 256,
        "a/" * 16 + "b",
        "abcdefgh/" * 15 + "x" * 250 + "/" + "y" * 250,
    ],
)
@pytest.mark.requirement("API-SKILLS-SAFE")
def test_path_outside_the_folder_is_refused(path: str) -> None:
    with pytest.raises(InvalidBundle, match="not a valid relative path"):
        make_bundle({"SKILL.md": BundleFile(SKILL), path: BundleFile(b"")})
    with pytest.raises(InvalidBundle, match="not a valid relative path"):
        unpack(zipped({"SKILL.md": SKILL, path: b""}))


@pytest.mark.requirement("API-SKILLS-SAFE")
def test_links_and_devices_are_refused() -> None:
    for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO):
        with pytest.raises(InvalidBundle, match="is not a regular file"):
            unpack(zipped({"a": b"/etc/passwd"}, external_attr=(kind | 0o644) << 16))


@pytest.mark.requirement("API-SKILLS-SAFE")
def test_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    bounds = BundleLimits(
        zip_bytes=100_000, file_count=5, file_bytes=1_000_000, total_bytes=1_500_000
    )
    with pytest.raises(InvalidBundle, match="more than 1000000 bytes"):
        unpack(zipped({"a": bytes(50_000_000)}), bounds)
    with pytest.raises(InvalidBundle, match="1500000 bytes together"):
        unpack(zipped({"a": bytes(900_000), "b": bytes(900_000)}), bounds)
    with pytest.raises(InvalidBundle, match="at most 5 files"):
        unpack(zipped({str(n): b"" for n in range(6)}), bounds)
    with pytest.raises(InvalidBundle, match="at most 5 files"):
        unpack(zipped({str(n): b"" for n in range(900)}), bounds)
    with pytest.raises(InvalidBundle, match="more than 100000 bytes"):
        unpack(bytes(100_001), bounds)
    with pytest.raises(InvalidBundle, match="1500000 bytes together"):
        make_bundle({"a": BundleFile(bytes(900_000)), "b": BundleFile(bytes(900_000))}, bounds)


def test_false_directory_size_is_refused() -> None:
    content = bytearray(zipped({"a": b""}))
    content[-10:-6] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(InvalidBundle, match="at most 500 files"):
        unpack(bytes(content))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "one SKILL.md"),
        ({"a/b.md": SKILL}, "one SKILL.md"),
        ({"a/SKILL.md": SKILL, "b/SKILL.md": SKILL}, "one SKILL.md"),
        ({"SKILL.md": SKILL, "skill.md": SKILL}, "one SKILL.md"),
        ({"SKILL.md": SKILL, "a": b"", "a/b": b""}, "a folder that is a file"),
        ({"SKILL.md": SKILL, "./SKILL.md": SKILL}, "occurs twice"),
        ({"SKILL.md": b"\xff"}, "it is no text"),
        ({"SKILL.md": b"# Hi"}, "front matter"),
        ({"SKILL.md": b"---\nname: a\n---\n"}, "no 'description'"),
        ({"SKILL.md": b"---\ndescription: a\n---\n"}, "no 'name'"),
        ({"SKILL.md": b"---\nname: ../a\ndescription: a\n---\n"}, "The name"),
        ({"SKILL.md": b"---\nname: a b\ndescription: a\n---\n"}, "The name"),
        ({"SKILL.md": b"---\nname: a\ndescription: " + b"x" * 1025 + b"\n---\n"}, "description"),
        ({"SKILL.md": b'---\nname: a\ndescription: "\\u0000"\n---\n'}, "description"),
    ],
)
def test_invalid_skill_is_refused_with_the_reason(files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(InvalidBundle, match=reason):
        make_bundle({path: BundleFile(content) for path, content in files.items()})


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\x05\x06", b"hello", b"PK\x03\x04" + bytes(90)]
)
def test_invalid_zip_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidBundle):
        unpack(content)


def test_a_file_without_a_name_is_refused() -> None:
    nameless = zipped({"unnamed": b"1"}).replace(b"unnamed", bytes(7))
    with pytest.raises(InvalidBundle):
        unpack(nameless)


GOOD = zipped({"a/SKILL.md": SKILL, "a/b.txt": b"hello" * 50})


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6))
def test_damaged_zip_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for at, value in changes:
        content[at] = value
    try:
        make_bundle(unpack(bytes(content)))
    except InvalidBundle:
        pass
