"""Code that runs inside the sandbox. It imports nothing from the server."""

from __future__ import annotations

__all__ = ["AGENT_FILES"]

#: The files of the agent, which every kind of sandbox brings into its boxes.
AGENT_FILES = ("agent.py", "files.py", "forwarder.py", "processor_share.py", "python_kernel.py")
