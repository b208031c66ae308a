"""The code that runs inside a box (sandbox environment). It imports nothing from the server."""

from __future__ import annotations

#: The files with the code of the agent. Every kind of sandbox copies them into its boxes.
AGENT_FILES = ("agent.py", "files.py", "forwarder.py", "processor_share.py", "python_kernel.py")
