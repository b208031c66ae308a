"""Code that all programs share. It runs the checks of a program in order and prints the name of
each check."""

import asyncio
import inspect
import os
import sys

MODEL = os.environ["MODEL"]
#: A point, as PNG in base64.
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def run(*checks):
    async def all_of_them():
        for check in checks:
            sys.stdout.write(f"{check.__name__}\n")
            done = check()
            if inspect.isawaitable(done):
                async with asyncio.timeout(60):
                    await done

    asyncio.run(all_of_them())
    sys.exit(0)
