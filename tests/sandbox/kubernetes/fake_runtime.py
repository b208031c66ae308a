"""The runtime of a fake pod: the HTTP API of agent-sandbox's ``python-runtime-sandbox``.

A program, which runs inside of a bubblewrap box with the folder of the pod at ``/mnt``. Uses only
the standard library.
"""

from __future__ import annotations

import email.parser
import email.policy
import json
import os
import shlex
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

BASE = "/mnt"
TIMEOUT_S = 120.0


def safe_path(name: str) -> str | None:
    """The path of a file below the base directory."""
    base = os.path.realpath(BASE)
    path = os.path.realpath(os.path.join(base, name.lstrip("/")))
    return path if os.path.commonpath([base, path]) == base else None


def execute(command: str) -> dict[str, object]:
    """Run a command without a shell."""
    with subprocess.Popen(
        shlex.split(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=BASE,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"stdout": "", "stderr": "Failed to execute command", "exit_code": 1}
    return {"stdout": stdout, "stderr": stderr, "exit_code": process.returncode}


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        operation, _, name = self.path.lstrip("/").partition("/")
        path = safe_path(unquote(name))
        if operation == "":
            self.answer(200, {"status": "ok"})
        elif operation != "download":
            self.answer(404, {"detail": "Not Found"})
        elif path is None:
            self.answer(403, {"message": "Access denied"})
        elif not os.path.isfile(path):
            self.answer(404, {"message": "File not found"})
        else:
            with open(path, "rb") as file:
                self.send(200, "application/octet-stream", file.read())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/execute":
            self.answer(200, execute(json.loads(body)["command"]))
        elif self.path == "/upload":
            self.upload(body)
        else:
            self.answer(404, {"detail": "Not Found"})

    def upload(self, body: bytes) -> None:
        head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        parser = email.parser.BytesParser(policy=email.policy.HTTP)
        part = next(parser.parsebytes(head + body).iter_parts())  # type: ignore[attr-defined]
        path = safe_path(part.get_filename() or "")
        if path is None:
            self.answer(403, {"message": "Access denied"})
            return
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(part.get_payload(decode=True))
        except OSError as error:
            self.answer(500, {"message": f"File upload failed: {error.strerror}"})
        else:
            self.answer(200, {"message": "uploaded"})

    def answer(self, status: int, content: object) -> None:
        self.send(status, "application/json", json.dumps(content).encode())

    def send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()
