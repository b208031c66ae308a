"""Bundles: what is a skill, and what a zip may not do."""

from __future__ import annotations

import io
import stat
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.attachments.skill_bundles import BadBundle, Bounds, Member, bundled, packed, unpacked

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
def test_a_skill_is_read(folder: str) -> None:
    content = zipped(
        {
            f"{folder}SKILL.md": SKILL,
            f"{folder}lib/add.py": b"x",
            f"{folder}.DS_Store": b"",
            "__MACOSX/._SKILL.md": b"",
        }
    )
    found = bundled(unpacked(content))
    assert (found.name, found.description) == ("sums", "Adds numbers.")
    assert {path: each.content for path, each in found.files.items()} == {
        "SKILL.md": SKILL,
        "lib/add.py": b"x",
    }


def test_it_is_packed_in_a_folder_of_its_name_and_scripts_stay_scripts() -> None:
    files = {"skill.md": Member(SKILL), "add.sh": Member(b"#!/bin/sh", is_executable=True)}
    found = bundled(files)
    again = unpacked(packed(found))
    assert set(again) == {"sums/SKILL.md", "sums/add.sh"}
    assert again["sums/add.sh"].is_executable and not again["sums/SKILL.md"].is_executable
    assert bundled(again) == found and packed(found) == packed(bundled(again))


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
def test_no_path_leads_out_of_the_folder(path: str) -> None:
    with pytest.raises(BadBundle, match="no path"):
        bundled({"SKILL.md": Member(SKILL), path: Member(b"")})
    with pytest.raises(BadBundle, match="no path"):
        unpacked(zipped({"SKILL.md": SKILL, path: b""}))


@pytest.mark.requirement("API-SKILLS-SAFE")
def test_links_and_devices_are_refused() -> None:
    for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO):
        with pytest.raises(BadBundle, match="is no file"):
            unpacked(zipped({"a": b"/etc/passwd"}, external_attr=(kind | 0o644) << 16))


@pytest.mark.requirement("API-SKILLS-SAFE")
def test_bombs_are_refused_before_they_go_off() -> None:
    bounds = Bounds(packed=100_000, files=5, file=1_000_000, unpacked=1_500_000)
    with pytest.raises(BadBundle, match="more than 1000000 bytes"):
        unpacked(zipped({"a": bytes(50_000_000)}), bounds)
    with pytest.raises(BadBundle, match="1500000 bytes together"):
        unpacked(zipped({"a": bytes(900_000), "b": bytes(900_000)}), bounds)
    with pytest.raises(BadBundle, match="at most 5 files"):
        unpacked(zipped({str(n): b"" for n in range(6)}), bounds)
    with pytest.raises(BadBundle, match="at most 5 files"):
        unpacked(zipped({str(n): b"" for n in range(900)}), bounds)
    with pytest.raises(BadBundle, match="more than 100000 bytes"):
        unpacked(bytes(100_001), bounds)
    with pytest.raises(BadBundle, match="1500000 bytes together"):
        bundled({"a": Member(bytes(900_000)), "b": Member(bytes(900_000))}, bounds)


def test_a_list_that_lies_about_its_size_is_refused_unread() -> None:
    content = bytearray(zipped({"a": b""}))
    content[-10:-6] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(BadBundle, match="at most 500 files"):
        unpacked(bytes(content))


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "one SKILL.md"),
        ({"a/b.md": SKILL}, "one SKILL.md"),
        ({"a/SKILL.md": SKILL, "b/SKILL.md": SKILL}, "one SKILL.md"),
        ({"SKILL.md": SKILL, "skill.md": SKILL}, "one SKILL.md"),
        ({"SKILL.md": SKILL, "a": b"", "a/b": b""}, "a folder that is a file"),
        ({"SKILL.md": SKILL, "./SKILL.md": SKILL}, "there twice"),
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
def test_what_is_no_skill_is_told(files: dict[str, bytes], why: str) -> None:
    with pytest.raises(BadBundle, match=why):
        bundled({path: Member(content) for path, content in files.items()})


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\x05\x06", b"hello", b"PK\x03\x04" + bytes(90)]
)
def test_what_is_no_zip_is_told(content: bytes) -> None:
    with pytest.raises(BadBundle):
        unpacked(content)


def test_a_file_without_a_name_is_refused() -> None:
    nameless = zipped({"unnamed": b"1"}).replace(b"unnamed", bytes(7))
    with pytest.raises(BadBundle):
        unpacked(nameless)


GOOD = zipped({"a/SKILL.md": SKILL, "a/b.txt": b"hello" * 50})


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6))
def test_whatever_is_damaged_is_refused_or_read(changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for at, value in changes:
        content[at] = value
    try:
        bundled(unpacked(bytes(content)))
    except BadBundle:
        pass
