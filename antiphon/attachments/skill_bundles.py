"""Read and write skill bundles. A bundle is a folder with a file SKILL.md. Clients upload it as a
zip file or as single files.

All paths are checked, so a bundle can be unpacked safely in any folder.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping

from msgspec import Struct

from .frontmatter import front_matter

#: File with the skill's name and description. In an upload, its name may be in upper or lower case.
MANIFEST = "SKILL.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_MAX_DESCRIPTION = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_PATH, _MAX_NAME, _MAX_DEPTH = 512, 255, 16
#: Files that operating systems add to folders.
_SYSTEM_FILES = (".ds_store", "thumbs.db", "desktop.ini")
#: Signatures of the end of central directory record of a zip, and of the locator that a ZIP64 has
#: before this record (APPNOTE.TXT, 4.3.15 and 4.3.16).
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x07"
#: Maximum number of bytes per file in the central directory of a zip.
_DIRECTORY_ENTRY_BYTES = 1024


class InvalidBundle(Exception):
    """Error for an upload that is not a valid skill. The message contains the reason and may be
    shown to the client."""


class BundleLimits(Struct, frozen=True, kw_only=True):
    """Limits of a skill bundle: size of the zip file, number of files, size of one file, and size
    of all files together. Sizes are in bytes."""

    zip_bytes: int = 50 << 20
    file_count: int = 500
    file_bytes: int = 25 << 20
    total_bytes: int = 100 << 20


DEFAULT_LIMITS = BundleLimits()


class BundleFile(Struct, frozen=True):
    """A file of a skill bundle."""

    content: bytes
    is_executable: bool = False


class Bundle(Struct, frozen=True, kw_only=True):
    """A valid skill. ``name`` and ``description`` come from its ``SKILL.md``. ``files``: its files
    by path."""

    name: str
    description: str
    files: Mapping[str, BundleFile]


def unpack(content: bytes, limits: BundleLimits = DEFAULT_LIMITS) -> Mapping[str, BundleFile]:
    """Unpack a zip file. Returns the files by path. Blocks the thread. Raises ``InvalidBundle`` if
    the zip is damaged, exceeds a limit or contains an invalid path."""
    if len(content) > limits.zip_bytes:
        raise InvalidBundle(f"The zip has more than {limits.zip_bytes} bytes.")
    _check_directory(content, limits)
    files: dict[str, BundleFile] = {}
    remaining = limits.total_bytes
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                _check_member(info)
                if info.filename.endswith("/"):  # Python's is_dir() fails for an empty name
                    continue
                with archive.open(info) as file:
                    read = file.read(min(limits.file_bytes, remaining) + 1)
                remaining -= len(read)
                mode = info.external_attr >> 16
                _add(files, info.filename, BundleFile(read, bool(mode & 0o100)), limits)
                _check_size(info.filename, len(read), remaining, limits)
    except InvalidBundle:
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
        raise InvalidBundle("The zip is damaged.") from None
    return files


def make_bundle(files: Mapping[str, BundleFile], limits: BundleLimits = DEFAULT_LIMITS) -> Bundle:
    """Build a skill from its files. If all files are in the same top folder, this folder is removed
    from the paths. Raises ``InvalidBundle``."""
    members: dict[str, BundleFile] = {}
    remaining = limits.total_bytes
    for path, member in files.items():
        remaining -= len(member.content)
        _check_size(path, len(member.content), remaining, limits)
        _add(members, path, member, limits)
    for path in members:
        if any(parent in members for parent in _parents(path)):
            raise InvalidBundle(f"'{path}' is in a folder that is a file.")
    members = _strip_top_folder(members)
    manifests = [path for path in members if path.lower() == MANIFEST.lower()]
    if len(manifests) != 1:
        raise InvalidBundle("A skill must have exactly one SKILL.md, in its top folder.")
    members[MANIFEST] = manifest = members.pop(manifests[0])
    name, description = _read_manifest(manifest.content)
    return Bundle(name=name, description=description, files=members)


def pack(bundle: Bundle) -> bytes:
    """Return a zip file of a skill. It contains one folder with the name of the skill. Equal skills
    give equal zip files. Blocks the thread."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(bundle.files):
            member = bundle.files[path]
            info = zipfile.ZipInfo(f"{bundle.name}/{path}")
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if member.is_executable else 0o644)) << 16
            archive.writestr(info, member.content)
    return out.getvalue()


def _check_directory(content: bytes, limits: BundleLimits) -> None:
    """Check the size of a zip file's central directory without parsing the directory, which could
    be huge. Only the zip's end record is read, which contains this size.

    Raises ``InvalidBundle`` if the directory is too large for the allowed number of files. Also
    raises it if the content is a ZIP64 file or no zip file.
    """
    end = content.rfind(_END, max(0, len(content) - 22 - 0xFFFF))
    if end < 0 or end + 22 > len(content):
        raise InvalidBundle("This is not a zip.")
    if content[max(0, end - 20) : end].startswith(_END_64):
        raise InvalidBundle("ZIP64 is not supported.")
    if (
        int.from_bytes(content[end + 12 : end + 16], "little")
        > _DIRECTORY_ENTRY_BYTES * limits.file_count
    ):
        raise InvalidBundle(f"A skill has at most {limits.file_count} files.")


def _check_member(info: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidBundle(f"'{info.filename}' is not a regular file.")
    if info.flag_bits & 1:
        raise InvalidBundle("The zip is protected by a password.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InvalidBundle("The zip uses an unsupported compression: only 'deflate' is supported.")


def _check_size(path: str, size: int, remaining: int, limits: BundleLimits) -> None:
    if size > limits.file_bytes:
        raise InvalidBundle(f"'{path}' has more than {limits.file_bytes} bytes.")
    if remaining < 0:
        raise InvalidBundle(
            f"The files of a skill have at most {limits.total_bytes} bytes together."
        )


def _add(files: dict[str, BundleFile], name: str, member: BundleFile, limits: BundleLimits) -> None:
    path = _path(name)
    if path is None:
        return
    if path in files:
        raise InvalidBundle(f"'{path}' occurs twice.")
    if len(files) >= limits.file_count:
        raise InvalidBundle(f"A skill has at most {limits.file_count} files.")
    files[path] = member


def _path(name: str) -> str | None:
    """Return the normalized path of a file. ``name``: the path in the upload. Returns None for a
    file that an operating system has added to the folder, such as ``.DS_Store``. Such files do not
    belong to the bundle.

    Raises ``InvalidBundle`` for an invalid path, for example a path that leaves the folder.
    """
    parts = name.replace("\\", "/").split("/")
    if parts[0] == ".":
        parts = parts[1:]
    path = "/".join(parts)
    if (
        not parts
        or _CONTROL.search(path)
        or not {"", ".", ".."}.isdisjoint(parts)
        or len(parts) > _MAX_DEPTH
        or len(path) > _MAX_PATH
        or any(len(part.encode()) > _MAX_NAME for part in parts)
    ):
        raise InvalidBundle(f"{name[:80]!r} is not a valid relative path.")
    return None if parts[0] == "__MACOSX" or parts[-1].lower() in _SYSTEM_FILES else path


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _strip_top_folder(files: Mapping[str, BundleFile]) -> dict[str, BundleFile]:
    """If all files are in the same top folder, remove this folder from their paths."""
    tops = {path.partition("/")[0] for path in files}
    if len(tops) == 1 and all("/" in path for path in files):
        return {path.partition("/")[2]: member for path, member in files.items()}
    return dict(files)


def _read_manifest(content: bytes) -> tuple[str, str]:
    """Return the name and the description in a ``SKILL.md``. Raises ``InvalidBundle``."""
    try:
        fields = front_matter(content.decode())
    except ValueError as error:  # UnicodeDecodeError is a subclass
        reason = "it is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InvalidBundle(f"SKILL.md cannot be read: {reason}.") from None
    for field in ("name", "description"):
        if not fields.get(field):
            raise InvalidBundle(f"The front matter of SKILL.md has no '{field}'.")
    name, description = fields["name"], fields["description"]
    if not _NAME.match(name):
        raise InvalidBundle(
            "The name of a skill has at most 64 letters, digits, hyphens and underscores, and"
            " begins with a letter or a digit."
        )
    if len(description) > _MAX_DESCRIPTION or _CONTROL.search(" ".join(description.split())):
        raise InvalidBundle(
            f"The description of a skill is a text of at most {_MAX_DESCRIPTION} characters."
        )
    return name, description
