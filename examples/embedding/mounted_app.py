"""A Starlette app of your own, with Antiphon mounted under /ai.

Run in a checkout: uvicorn --app-dir examples/embedding mounted_app:app
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import antiphon


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    settings = antiphon.load_settings()  # antiphon.toml and ANTIPHON_… variables
    async with antiphon.open_app(settings) as responses_api:
        app.mount("/ai", responses_api)
        yield


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("My own page")


app = Starlette(routes=[Route("/", home)], lifespan=lifespan)
