"""Run Schemathesis over the OpenAPI document of a server with scripted parts.

``python -m tests.schemathesis [EXAMPLES [PHASES]]``. Fails on a server error, and on a status, a
media type, a header or a body that the document does not have.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.schemathesis.server import serve_in_thread

#: Not ``positive_data_acceptance``: a schema cannot say which models or files exist.
_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


def run(examples: int = 100, phases: str = "coverage,fuzzing,stateful") -> tuple[int, str]:
    """Run the phases with so many examples an operation; return exit status and report."""
    with tempfile.TemporaryDirectory() as name, serve_in_thread(Path(name)) as url:
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            f"--config-file={name}/schemathesis.toml",
            "run",
            f"{url}/openapi.json",
            f"--phases={phases}",
            f"--max-examples={examples}",
            f"--checks={','.join(_CHECKS)}",
            "--generation-database=none",
            "--seed=1",
            "--no-color",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=name)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    given = sys.argv[1:]
    status, report = run(int(given[0]) if given else 100, *given[1:2])
    sys.stdout.write(report)
    sys.exit(status)
