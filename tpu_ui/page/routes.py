"""Routes beside Gradio's own, and what is refused before it reaches them."""

import base64
import binascii
import json
import re
import secrets
from typing import Any
from urllib.parse import unquote

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tpu_ui.page.metrics import CONTENT_TYPE, Metrics

# Gradio fetches public addresses for whoever asks. Nothing here needs that.
_FETCHING = re.compile(r".*/gradio_api/(?:file(?:=|/)\s*[a-z][a-z0-9+.-]*:/|proxy=)", re.IGNORECASE)
_ADDRESS = re.compile(r"\s*[a-z][a-z0-9+.-]*:/", re.IGNORECASE)

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


class RefuseBodies:
    """Answers 413 to a body that is larger than any request, before it is held in memory, and 403 to one that names a
    file by its address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD") or scope["path"].endswith(_UPLOAD):
            await self._app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        is_large = told.isdigit() and int(told) > _MAX_BODY_BYTES
        body, more = b"", True
        while more and not is_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            is_large = len(body) > _MAX_BODY_BYTES  # sent in chunks, with no length told
        if is_large:
            await PlainTextResponse("This is too large for a request.", 413)(scope, receive, send)
        elif _names_an_address(body):
            await PlainTextResponse("Addresses are not fetched.", 403)(scope, receive, send)
        else:
            await self._app(scope, _again(body, receive), send)


def _again(body: bytes, receive: Receive) -> Receive:
    """Give out a body that was read already, then what comes after it."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return unread.pop() if unread else await receive()

    return given


def _names_an_address(body: bytes) -> bool:
    """Whether a file in a JSON body has an address for its path, which Gradio would fetch."""
    try:
        values: list[Any] = [json.loads(body)]
    except ValueError:
        return False  # no JSON: Gradio reads no files out of it
    except RecursionError:
        return True  # deeper than any request: what is in it is not known
    while values:
        value = values.pop()
        if isinstance(value, dict):
            path = value.get("path")
            if isinstance(path, str) and _ADDRESS.match(path):
                return True
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return False


def app_options(metrics: Metrics, auth: tuple[tuple[str, str], ...]) -> dict:
    """What Gradio hands on to its FastAPI app."""

    def tell(request: Request) -> Response:
        if auth and not _is_known(request.headers.get("authorization", ""), auth):
            return PlainTextResponse("Log in.", 401, {"WWW-Authenticate": 'Basic realm="tpu_ui metrics"'})
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return {
        "routes": [Route("/metrics", tell)],
        "middleware": [Middleware(RefuseForeignAddresses), Middleware(RefuseBodies)],
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
