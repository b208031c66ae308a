"""The table of commands.

The modules of this folder declare the arguments of the commands. They import the code that runs a
command only when it runs, because the command line must start quickly.
"""

from __future__ import annotations

from collections.abc import Mapping

from .base import Command
from .clients import CHAT, LAUNCH
from .install import INSTALL
from .keys import KEY
from .models import MODELS, PULL
from .operators import AUDIT, TENANT, USAGE
from .server import DEMO, DOCTOR, SERVE, SETTINGS
from .storage import FILES, INDEX, MIGRATE

COMMANDS: Mapping[str, Command] = {
    "serve": SERVE,
    "chat": CHAT,
    "launch": LAUNCH,
    "models": MODELS,
    "usage": USAGE,
    "tenant": TENANT,
    "audit": AUDIT,
    "pull": PULL,
    "index": INDEX,
    "files": FILES,
    "migrate": MIGRATE,
    "settings": SETTINGS,
    "doctor": DOCTOR,
    "install": INSTALL,
    "demo": DEMO,
    "key": KEY,
}
