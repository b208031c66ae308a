"""The groups of settings, i.e. the headings under which help and documentation list them.

Each function declares a setting of its group, as ``declare`` does.
"""

from __future__ import annotations

from functools import partial

from .options import declare

server = partial(declare, group="Server")
models = partial(declare, group="Models")
storage = partial(declare, group="Storage")
access = partial(declare, group="Access")
limits = partial(declare, group="Limits")
fetching = partial(declare, group="Fetching")
tools = partial(declare, group="Tools")
answers = partial(declare, group="Responses")
webhooks = partial(declare, group="Webhooks")
chat = partial(declare, group="Chat")
