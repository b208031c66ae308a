"""Generated small images and documents."""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from collections.abc import Callable

Color = tuple[int, int, int]


def png(width: int = 2, height: int = 3, color: Color = (200, 10, 10)) -> bytes:
    """Return a PNG in one colour."""
    return _png(width, height, (b"\0" + bytes(color) * width) * height)


def drawn(width: int, height: int, color: Callable[[float, float], Color]) -> bytes:
    """Return a PNG; ``color`` gets each pixel's centre, from 0 to 1 in both directions."""
    rows = []
    for y in range(height):
        row = (color((x + 0.5) / width, (y + 0.5) / height) for x in range(width))
        rows.append(b"\0" + b"".join(map(bytes, row)))
    return _png(width, height, b"".join(rows))


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


GIF = b"GIF89a" + struct.pack("<HH", 4, 5) + b"\0\0\0;"
#: Two segments before the frame.
JPEG = (
    b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xdb\x00\x03c"
    + b"\xff\xc2\x00\x0b\x08"
    + struct.pack(">HH", 7, 6)
    + b"\x01\x11\x00\xff\xd9"
)
WEBPS = (
    b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 8, 9),
    b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 7 | 8 << 14),
    b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0" + bytes((7, 0, 0, 8, 0, 0)),
)


def data_url(content: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def pdf(*pages: str, encrypted: bool = False) -> bytes:
    """Return a PDF with a line of text on each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        stream = f"BT /F1 18 Tf 20 100 Td ({text}) Tj ET"
        objects += (
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200]"
            f" /Contents {5 + 2 * number} 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        )
    out, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    locked = (
        f" /Encrypt << /Filter /Standard /V 1 /R 2 /O <{'41' * 32}> /U <{'42' * 32}> /P -4 >>"
        " /ID [<00><00>]"
    )
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R{locked if encrypted else ''} >>"
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    return f"{out}trailer {trailer}\nstartxref\n{len(out) - len(table) - 28}\n%%EOF\n".encode()


_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_FORM = "application/vnd.openxmlformats-officedocument"


def office(parts: dict[str, str], types: dict[str, str], root: str) -> bytes:
    """Return an Open Packaging file from parts, content types by part, and the main part."""
    overrides = "".join(
        f'<Override PartName="/{name}" ContentType="{kind}"/>' for name, kind in types.items()
    )
    relation = f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="{root}"/>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{_TYPES}"><Default Extension="rels" ContentType="application/'
            f'vnd.openxmlformats-package.relationships+xml"/>{overrides}</Types>',
        )
        archive.writestr(
            "_rels/.rels", f'<Relationships xmlns="{_RELATIONS}">{relation}</Relationships>'
        )
        for name, body in parts.items():
            archive.writestr(name, body)
    return file.getvalue()


def docx(text: str) -> bytes:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = f"<w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body>"
    return office(
        {"word/document.xml": f'<w:document xmlns:w="{space}">{body}</w:document>'},
        {"word/document.xml": f"{_FORM}.wordprocessingml.document.main+xml"},
        "word/document.xml",
    )


def xlsx(*rows: tuple[str, ...]) -> bytes:
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    cells = "".join(
        f'<row r="{number}">'
        + "".join(
            f'<c r="{chr(65 + column)}{number}" t="inlineStr"><is><t>{cell}</t></is></c>'
            for column, cell in enumerate(row)
        )
        + "</row>"
        for number, row in enumerate(rows, 1)
    )
    sheets = '<sheets><sheet name="One" sheetId="1" r:id="r1"/></sheets>'
    relation = f'<Relationship Id="r1" Type="{_OFFICE}/worksheet" Target="worksheets/one.xml"/>'
    return office(
        {
            "xl/workbook.xml": f'<workbook xmlns="{space}" xmlns:r="{_OFFICE}">{sheets}</workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_RELATIONS}">{relation}'
            "</Relationships>",
            "xl/worksheets/one.xml": f'<worksheet xmlns="{space}"><sheetData>{cells}</sheetData>'
            "</worksheet>",
        },
        {
            "xl/workbook.xml": f"{_FORM}.spreadsheetml.sheet.main+xml",
            "xl/worksheets/one.xml": f"{_FORM}.spreadsheetml.worksheet+xml",
        },
        "xl/workbook.xml",
    )
