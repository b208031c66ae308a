"""A real server, shared by the tests that only send requests, or of the module."""

from __future__ import annotations

from tests.harness import client, server, server_folder, server_setup, shared_server, shared_setup

__all__ = ["client", "server", "server_folder", "server_setup", "shared_server", "shared_setup"]
