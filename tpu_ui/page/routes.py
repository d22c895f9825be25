"""Routes beside Gradio's own, and what is refused before it reaches them."""

import base64
import binascii
import re
import secrets
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tpu_ui.page.metrics import CONTENT_TYPE, Metrics

# Gradio fetches public addresses for whoever asks. Nothing here needs that.
_FETCHING = re.compile(r".*/gradio_api/(?:file(?:=|/)\s*[a-z][a-z0-9+.-]*:/|proxy=)", re.IGNORECASE)

# The two prompts at their longest, each character written as two JSON escapes, are a quarter of it.
_MAX_BODY_BYTES = 2_000_000
_UPLOAD = "/gradio_api/upload"  # Gradio has a limit of its own for files


class RefuseForeignAddresses:
    """Answers 403 to every request that would make the server fetch an address of the caller's choice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _FETCHING.match(unquote(unquote(scope["path"]))):
            await PlainTextResponse("Addresses are not fetched.", 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class RefuseLargeBodies:
    """Answers 413 to a body that is larger than any request, before it is held in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(_UPLOAD):
            await self._app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > _MAX_BODY_BYTES:
            await PlainTextResponse("This is too large for a request.", 413)(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > _MAX_BODY_BYTES:  # sent in chunks, with no length told
                raise HTTPException(413, "This is too large for a request.")
            return message

        await self._app(scope, counted, send)


def app_options(metrics: Metrics, auth: tuple[tuple[str, str], ...]) -> dict:
    """What Gradio hands on to its FastAPI app."""

    def tell(request: Request) -> Response:
        if auth and not _is_known(request.headers.get("authorization", ""), auth):
            return PlainTextResponse("Log in.", 401, {"WWW-Authenticate": 'Basic realm="tpu_ui metrics"'})
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return {
        "routes": [Route("/metrics", tell)],
        "middleware": [Middleware(RefuseForeignAddresses), Middleware(RefuseLargeBodies)],
        "docs_url": None,
        "redoc_url": None,
        "openapi_url": None,
    }


def _is_known(header: str, auth: tuple[tuple[str, str], ...]) -> bool:
    """Whether a Basic authorization names one of the page's logins."""
    scheme, _, coded = header.partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        given = base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        return False
    return any([secrets.compare_digest(given, f"{user}:{password}".encode()) for user, password in auth])
