"""Bundles of skills: a folder of files with a SKILL.md that says what it is for, as a zip or file
by file. What comes out of one is safe to be written below a folder. It knows no requests.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from .frontmatter import front_matter

__all__ = [
    "BOUNDS",
    "MANIFEST",
    "BadBundle",
    "Bounds",
    "Bundle",
    "Member",
    "bundled",
    "packed",
    "unpacked",
]

#: What a skill says of itself lies there; in an upload in any letters.
MANIFEST = "SKILL.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_MOST_ABOUT = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MOST_PATH, _MOST_PART, _MOST_DEPTH = 512, 255, 16
#: What systems add to folders by themselves.
_LITTER = (".ds_store", "thumbs.db", "desktop.ini")
#: The ends of a zip, and of one with 64-bit sizes (APPNOTE.TXT, 4.3.14 to 4.3.16).
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x07"
#: Bytes that the list of a zip may have for each of its files.
_LISTED = 1024


class BadBundle(Exception):
    """What is no skill; the message says why."""


class Bounds(Struct, frozen=True, kw_only=True):
    """Of one bundle: bytes of the zip, files, bytes of one file and of all. The first three are
    OpenAI's."""

    packed: int = 50 << 20
    files: int = 500
    file: int = 25 << 20
    unpacked: int = 100 << 20


BOUNDS = Bounds()


class Member(Struct, frozen=True):
    """A file of a bundle."""

    content: bytes
    is_executable: bool = False


class Bundle(Struct, frozen=True, kw_only=True):
    """A skill: what its ``SKILL.md`` says it is called and is for, and its files by their paths."""

    name: str
    description: str
    files: Mapping[str, Member]


def unpacked(content: bytes, bounds: Bounds = BOUNDS) -> Mapping[str, Member]:
    """The files of a zip by their paths. Blocks. Raises ``BadBundle``."""
    if len(content) > bounds.packed:
        raise BadBundle(f"The zip has more than {bounds.packed} bytes.")
    _check_list(content, bounds)
    found: dict[str, Member] = {}
    left = bounds.unpacked
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                _check_member(info)
                if info.filename.endswith("/"):  # it may have no name: Python's is_dir breaks
                    continue
                with archive.open(info) as file:
                    read = file.read(min(bounds.file, left) + 1)
                left -= len(read)
                mode = info.external_attr >> 16
                _add(found, info.filename, Member(read, bool(mode & 0o100)), bounds)
                _check_size(info.filename, len(read), left, bounds)
    except BadBundle:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        ValueError,
        OSError,
    ):
        raise BadBundle("The zip is damaged.") from None
    return found


def bundled(files: Mapping[str, Member], bounds: Bounds = BOUNDS) -> Bundle:
    """A skill of its files, which may all lie in one folder. Raises ``BadBundle``."""
    known: dict[str, Member] = {}
    left = bounds.unpacked
    for path, member in files.items():
        left -= len(member.content)
        _check_size(path, len(member.content), left, bounds)
        _add(known, path, member, bounds)
    for path in known:
        if any(parent in known for parent in _parents(path)):
            raise BadBundle(f"'{path}' is in a folder that is a file.")
    known = _within(known)
    manifests = [path for path in known if path.lower() == MANIFEST.lower()]
    if len(manifests) != 1:
        raise BadBundle("A skill has one SKILL.md, in its folder.")
    known[MANIFEST] = manifest = known.pop(manifests[0])
    name, about = _said(manifest.content)
    return Bundle(name=name, description=about, files=known)


def packed(bundle: Bundle) -> bytes:
    """A zip of it, in a folder of its name; the same for the same files. Blocks."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(bundle.files):
            member = bundle.files[path]
            info = zipfile.ZipInfo(f"{bundle.name}/{path}")
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if member.is_executable else 0o644)) << 16
            archive.writestr(info, member.content)
    return out.getvalue()


def _check_list(content: bytes, bounds: Bounds) -> None:
    """A list of a million files is refused before it is read."""
    end = content.rfind(_END, max(0, len(content) - 22 - 0xFFFF))
    if end < 0 or end + 22 > len(content):
        raise BadBundle("This is no zip.")
    if content[max(0, end - 20) : end].startswith(_END_64):
        raise BadBundle("Zips with 64-bit sizes are not taken.")
    if int.from_bytes(content[end + 12 : end + 16], "little") > _LISTED * bounds.files:
        raise BadBundle(f"A skill has at most {bounds.files} files.")


def _check_member(info: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadBundle(f"'{info.filename}' is no file.")
    if info.flag_bits & 1:
        raise BadBundle("The zip is protected by a password.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadBundle("The zip is packed in a way that is not taken: only 'deflate' is.")


def _check_size(path: str, size: int, left: int, bounds: Bounds) -> None:
    if size > bounds.file:
        raise BadBundle(f"'{path}' has more than {bounds.file} bytes.")
    if left < 0:
        raise BadBundle(f"The files of a skill have at most {bounds.unpacked} bytes together.")


def _add(found: dict[str, Member], name: str, member: Member, bounds: Bounds) -> None:
    path = _path(name)
    if path is None:
        return
    if path in found:
        raise BadBundle(f"'{path}' is there twice.")
    if len(found) >= bounds.files:
        raise BadBundle(f"A skill has at most {bounds.files} files.")
    found[path] = member


def _path(name: str) -> str | None:
    """A path that leads nowhere else; None for what systems add. Raises ``BadBundle``."""
    parts = name.replace("\\", "/").split("/")
    if parts[0] == ".":
        parts = parts[1:]
    path = "/".join(parts)
    if (
        _CONTROL.search(path)
        or not {"", ".", ".."}.isdisjoint(parts)
        or len(parts) > _MOST_DEPTH
        or len(path) > _MOST_PATH
        or any(len(part.encode()) > _MOST_PART for part in parts)
    ):
        raise BadBundle(f"{name[:80]!r} is no path of a file in a folder.")
    return None if parts[0] == "__MACOSX" or parts[-1].lower() in _LITTER else path


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _within(files: Mapping[str, Member]) -> dict[str, Member]:
    """Without the one folder that all lie in."""
    tops = {path.partition("/")[0] for path in files}
    if len(tops) == 1 and all("/" in path for path in files):
        return {path.partition("/")[2]: member for path, member in files.items()}
    return dict(files)


def _said(content: bytes) -> tuple[str, str]:
    """Name and description."""
    try:
        said = front_matter(content.decode())
    except ValueError as error:  # a UnicodeDecodeError is one too
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise BadBundle(f"SKILL.md cannot be read: {why}.") from None
    fields: tuple[Literal["name"], Literal["description"]] = ("name", "description")
    for field in fields:
        if not said.get(field):
            raise BadBundle(f"The front matter of SKILL.md has no '{field}'.")
    name, about = said["name"], said["description"]
    if not _NAME.match(name):
        raise BadBundle(
            "The name of a skill has at most 64 letters, digits, hyphens and underscores, and"
            " begins with a letter or a digit."
        )
    if len(about) > _MOST_ABOUT or _CONTROL.search(" ".join(about.split())):
        raise BadBundle(
            f"The description of a skill is a text of at most {_MOST_ABOUT} characters."
        )
    return name, about
