"""A Ray cluster of one node, with Ray Serve.

Ray listens on all interfaces, whatever address it is given, and runs code for whoever connects. So
a cluster starts only in a network namespace with loopback alone (``python -m tests.offline``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.offline import has_only_loopback

_ROOT = Path(__file__).parents[1]
_BIN = Path(sys.executable).parent
_DASHBOARD = "http://127.0.0.1:8265"
#: Memory of Ray's object store, in bytes: the least that it accepts. Nothing uses it.
_OBJECTS = 80_000_000
_WAIT_S = 300
_ATTEMPTS = 3


class Cluster:
    """Created by ``running_cluster``. ``url``: where Serve answers."""

    url = "http://127.0.0.1:8000"

    def __init__(self, folder: Path, environment: Mapping[str, str], *, has_haproxy: bool) -> None:
        self.has_haproxy = has_haproxy
        self._folder = folder
        self._environment = environment
        self._name = ""

    def deploy(
        self, arguments: Mapping[str, Any], *, name: str = "antiphon", **options: Any
    ) -> None:
        """Deploy the API with arguments of ``antiphon.ray:app``. Returns when Serve has accepted
        them; replicas start after that. ``name``: of the only application from now on.
        ``options``: of the deployment."""
        self._name = name
        config = {
            "http_options": {"host": "127.0.0.1"},
            "applications": [
                {
                    "name": name,
                    "import_path": "antiphon.ray:app",
                    "args": arguments,
                    "deployments": [{"name": "Antiphon", **options}],
                }
            ],
        }
        file = self._folder / "serve.yaml"
        file.write_text(json.dumps(config))
        command = [_BIN / "serve", "deploy", file, "--address", _DASHBOARD]
        # The first one starts Serve, which gives up if its proxy takes longer than a minute.
        for _ in range(_ATTEMPTS):
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=_WAIT_S
            )
            if not done.returncode:
                return
        raise RuntimeError(f"{done.stdout}{done.stderr}")

    def replicas(self) -> list[int]:
        """The processes of the replicas that run; none while a version replaces another one."""
        app = _get(f"{_DASHBOARD}/api/serve/applications/")["applications"][self._name]
        if app["status"] != "RUNNING":
            return []
        replicas = app["deployments"]["Antiphon"]["replicas"]
        return [int(each["pid"]) for each in replicas if each["state"] == "RUNNING"]

    def proxies(self) -> list[int]:
        """The processes that pass requests on to replicas, and those that manage them."""
        names = ("ray::ProxyActor", "ray::HAProxyManager", "haproxy")
        return [
            pid for pid, command in _processes() if command[0].rpartition("/")[2].startswith(names)
        ]


@contextmanager
def running_cluster(*, haproxy: bool) -> Iterator[Cluster]:
    """Start a cluster and yield it. ``haproxy``: HAProxy takes the place of Serve's own proxy.
    Raises ``RuntimeError`` outside of a network namespace with loopback alone."""
    if not has_only_loopback():
        raise RuntimeError("Ray listens on all interfaces: run this with python -m tests.offline")
    # Ray's paths of sockets are long, and may not have more than 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        environment = {
            "PATH": f"{_BIN}:{os.environ['PATH']}",
            "HOME": name,
            "PYTHONPATH": str(_ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_ENABLE_HA_PROXY": str(int(haproxy)),
            "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "600",
            # By default these are in a folder that all clusters of a machine share.
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{name}/haproxy/haproxy.cfg",
            "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{name}/haproxy/admin.sock",
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": f"{name}/haproxy",
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{name}/haproxy/server-state",
            # By default workers have the niceness 15, and starve beside anything else.
            "RAY_worker_niceness": "0",
            # A busy machine needs longer than the default of 5 s.
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
        }
        command = [
            *(_BIN / "ray", "start", "--head", "--block", "--num-cpus", "16"),
            *("--temp-dir", name, "--object-store-memory", str(_OBJECTS)),
        ]
        with (Path(name) / "start.log").open("w+") as log:
            process = subprocess.Popen(command, env=environment, cwd=name, stdout=log, stderr=log)
            try:
                _wait_for_dashboard(process, Path(log.name))
                yield Cluster(Path(name), environment, has_haproxy=haproxy)
            finally:
                while _kill(name):
                    time.sleep(0.1)
                process.wait()


def _wait_for_dashboard(process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError):
            _get(f"{_DASHBOARD}/api/serve/applications/")
            return
        time.sleep(0.2)
    raise RuntimeError(f"Ray did not start:\n{log.read_text()}")


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def _processes() -> Iterator[tuple[int, list[str]]]:
    """The processes in this network namespace, and their commands."""
    ours = Path("/proc/self/ns/net").readlink()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and (folder / "ns/net").readlink() == ours:
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                yield int(folder.name), command.split("\0")


def _kill(folder: str) -> int:
    """Kill the processes of the cluster in a folder. Returns how many there were. The stop command
    of Ray would end all clusters of the machine."""
    count = 0
    for pid, command in _processes():
        # Workers have titles in place of their commands.
        if command[0].startswith("ray::") or any(folder in word for word in command):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                count += 1
    return count
