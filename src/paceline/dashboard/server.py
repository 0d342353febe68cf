"""The dashboard over HTTP: the page, snapshots, server-sent events, a job's detail, metrics, and commands.

    GET  /                            the page and its files; nothing from elsewhere
    GET  /api/snapshot                everything, as JSON
    GET  /api/events                  server-sent events: a snapshot, then merge patches
    GET  /api/history/{source}        the switch's memory over time, for the chart's past
    GET  /api/runs/{run}/jobs/{job}   one job's detail; ?rank=, ?attempt=
    POST /api/runs/{run}/commands     cancel, priority, pause, unpause, add: needs the token
    GET  /metrics                     the planner's figures for Prometheus
    GET  /healthz                     that this process works

Reading needs no token; steering needs it as `Authorization: Bearer`, which no other page's script can send along. A
server on a loopback address answers only requests that name a loopback host: a page elsewhere whose name was made to
mean 127.0.0.1 reads nothing.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from paceline.dashboard.detail import job_detail
from paceline.dashboard.hub import Hub
from paceline.dashboard.planner_metrics import metrics_text
from paceline.dashboard.steer import CommandError, steer
from paceline.dashboard.views import as_json
from paceline.errors import UserError
from paceline.exposition import content_type, wants_openmetrics
from paceline.http_limits import bounded_protocol

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "default-src 'self'; style-src 'self'; img-src 'self' data:; frame-ancestors 'none'"
"""The page takes nothing from elsewhere, and the browser holds it to that."""
BODY_BYTES_MAX = 262_144
PORTS_TRIED = 20
DIGITS_MAX = 9
"""Of a rank, or an attempt."""


def new_token() -> str:
    """What steering asks for, where no file gives it."""
    return secrets.token_urlsafe(18)


def bound_socket(host: str, port: int, any_after: bool) -> socket.socket:
    """A listening socket; with `any_after` one of the ports that follow where the first is taken."""
    for tried in range(port, port + (PORTS_TRIED if any_after and port else 1)):
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, tried))
            made.listen(128)
        except (OSError, OverflowError) as error:
            made.close()
            reason = getattr(error, "strerror", None) or error
            continue
        return made
    raise UserError(f"cannot listen there: {reason}", place=f"{host}:{port}")


def application(hub: Hub, token: str, loopback: bool) -> Any:
    """The routes, as an ASGI application that looks at its sources while it serves."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    class Json(JSONResponse):
        """In ASCII: a folder's name may hold what is no Unicode."""

        def render(self, content: Any) -> bytes:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")

    def guarded(
        handler: Callable[[Request], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if loopback and not _names_loopback(request.headers.get("host", "")):
                return Json({"error": "this dashboard is for this machine alone"}, 403)
            try:
                response = await handler(request)
            except UserError as error:
                return Json({"error": str(error.message)}, 404)
            except CommandError as refused:
                return Json({"error": str(refused)}, refused.status)
            response.headers["Cache-Control"] = "no-store"
            response.headers["Content-Security-Policy"] = POLICY
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Referrer-Policy"] = "no-referrer"
            return response

        return endpoint

    pages = {path.name for path in STATIC.iterdir()}

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        path = STATIC / name
        if name not in pages or path.suffix not in TYPES:
            return Json({"error": "there is no such page"}, 404)
        return Response(path.read_bytes(), media_type=TYPES[path.suffix])

    async def snapshot(request: Request) -> Response:
        return Json(hub.latest)

    async def events(request: Request) -> Response:
        return StreamingResponse(hub.listen(), media_type="text/event-stream")

    async def history(request: Request) -> Response:
        name = request.path_params["source"]
        if name in hub.runs:
            return Json(as_json(list(hub.runs[name].looks)))
        if name in hub.switches:
            return Json(as_json(list(hub.switches[name].history)))
        raise UserError(f"{name!r} is not watched here")

    def run_of(request: Request) -> Any:
        name = request.path_params["run"]
        if name not in hub.runs:
            raise UserError(f"there is no run {name!r} here")
        return hub.runs[name]

    async def detail(request: Request) -> Response:
        query = request.query_params
        rank, attempt = (_small_number(query.get(key, "")) for key in ("rank", "attempt"))
        found = await run_in_threadpool(
            job_detail, run_of(request), request.path_params["job"], rank, attempt
        )
        return Json(found)

    async def command(request: Request) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not token or not hmac.compare_digest(given.encode(), token.encode()):
            raise CommandError("the dashboard's token is missing or wrong", 401)
        body = await _body(request)
        return Json(await run_in_threadpool(steer, run_of(request).folder, body))

    async def metrics(request: Request) -> Response:
        asked = wants_openmetrics(request.headers.get("accept", ""))
        text = await run_in_threadpool(metrics_text, dict(hub.runs), asked)
        return Response(text, media_type=content_type(text))

    async def health(request: Request) -> Response:
        return Json({"status": "ok", "looks": hub.polls})

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        looking = asyncio.create_task(hub.run())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    return Starlette(
        routes=[
            Route("/", guarded(static)),
            Route("/static/{name}", guarded(static)),
            Route("/api/snapshot", guarded(snapshot)),
            Route("/api/events", guarded(events)),
            Route("/api/history/{source:path}", guarded(history)),
            Route("/api/runs/{run}/jobs/{job}", guarded(detail)),
            Route("/api/runs/{run}/commands", guarded(command), methods=["POST"]),
            Route("/metrics", guarded(metrics)),
            Route("/healthz", guarded(health)),
        ],
        lifespan=lifespan,
    )


async def _body(request: Any) -> dict[str, Any]:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > BODY_BYTES_MAX:
            raise CommandError(f"the request is longer than {BODY_BYTES_MAX} bytes", 413)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise CommandError("the request is not JSON", 400) from None
    if not isinstance(body, dict):
        raise CommandError("the request is not a JSON object", 400)
    return body


def _small_number(text: str) -> int:
    """0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else 0


def _names_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def server_of(hub: Hub, token: str, loopback: bool) -> Any:
    """Uvicorn's server for a dashboard."""
    import uvicorn

    config = uvicorn.Config(
        application(hub, token, loopback),
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=1,
        http=bounded_protocol(),
        ws="none",
    )
    return uvicorn.Server(config)


def serve(hub: Hub, made: socket.socket, token: str) -> None:
    """Serve on a socket until a signal comes."""
    host = str(made.getsockname()[0])
    server = server_of(hub, token, ipaddress.ip_address(host).is_loopback)
    handle = server.handle_exit

    def handle_exit(number: int, frame: Any) -> None:
        hub.end()  # listeners would hold the server open
        handle(number, frame)

    server.handle_exit = handle_exit
    try:
        server.run(sockets=[made])
    finally:
        hub.close()
        made.close()
