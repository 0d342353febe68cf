"""The control plane: HTTP and JSON in front of a `LiveSwitch`, in a thread of the same process.

Admission, listing and binding of racks need the cluster's token (compared in constant time); what concerns one job
needs that job's key. Both are looked at before a body is read. Of connections without a request the oldest is
closed when there are too many, and each after a few seconds: they keep nobody from being admitted. The same goes for
connections that do not finish their TLS handshake. A refusal is `{"error": sentence}` with its status; a body is small,
or it is refused. What a page in a browser asks for is refused: on loopback a switch has no token.
"""

import asyncio
import contextlib
import hmac
import json
import socket
import threading
import time
from asyncio import sslproto
from collections.abc import Callable, Iterator
from typing import Any

from paceline.errors import UserError
from paceline.exposition import content_type, wants_openmetrics
from paceline.http_limits import IDLE_MAX, REQUEST_S, bounded_protocol
from paceline.live.net.addresses import (
    family_of,
    give_back,
    is_everywhere,
    lend_address,
    parse_ip,
    show_address,
    split_address,
)
from paceline.live.net.sockets import is_everyones
from paceline.live.switch.daemon import LiveSwitch
from paceline.live.switch.jobs import AdmittedJob, Refusal, parse_key
from paceline.live.switch.metrics import metrics_text
from paceline.live.switch.shard_state import SHARDS_MAX
from paceline.live.switch_client import NAME_CHARACTERS_MAX

BODY_BYTES_MAX = 65_536
DIGITS_MAX = 9
"""Of a number in a path."""
START_TIMEOUT_S = 20.0
TLS_BUFFER_BYTES = 16_384
"""Of a connection, from its first byte: with asyncio's own 256 KiB strangers who break off have cost 800 MB."""
PUBLIC_MAX = 2
"""Requests without token or key that are answered at a time, of each kind: they wait, and keep no job waiting."""


class ControlServer:
    """An HTTP server for a switch; `port` is where it listens."""

    def __init__(self, switch: LiveSwitch) -> None:
        import uvicorn

        options = switch.options
        self._socket = socket.socket(family_of(options.host), socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if self._socket.family == socket.AF_INET6:
                only = int(not is_everywhere(options.host))
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            self._socket.bind((options.host, options.port))
            self._socket.listen(128)
        except OSError as error:
            self._socket.close()
            place = show_address(options.host, options.port)
            raise UserError(f"cannot listen there: {error.strerror or error}", place=place) from None
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            application(switch),
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            http=bounded_protocol(),
            ws="none",
            ssl_certfile=options.tls_certificate,
            ssl_keyfile=options.tls_key,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="paceline-control", daemon=True)

    def start(self) -> None:
        """Serve; returns when requests are taken."""
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the control plane did not start")
            time.sleep(0.005)

    def close(self) -> None:
        """End serving, and wait for the end."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(10.0)
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_BoundedLoop) as runner:
            runner.run(self._server.serve(sockets=[self._socket]))


class _BoundedLoop(asyncio.SelectorEventLoop):
    """The event loop, with limits for connections that do not finish their handshake.

    A protocol learns of its connection after the handshake only; the loop makes a transport as soon as it is there.
    """

    def __init__(self) -> None:
        super().__init__()
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        self._shaking: dict[Any, None] = {}

    def _make_ssl_transport(self, *args: Any, **more: Any) -> Any:
        more["ssl_handshake_timeout"] = REQUEST_S
        transport: Any = super()._make_ssl_transport(*args, **more)  # type: ignore[misc]
        self._shaking[transport] = None
        waiter = more.get("waiter")
        if waiter is not None:
            waiter.add_done_callback(lambda _done: self._shaking.pop(transport, None))
        if len(self._shaking) > IDLE_MAX:
            oldest = next(iter(self._shaking))
            self._shaking.pop(oldest)
            # Later: of many that come at once none is connected yet, and could not be closed.
            self.call_soon(oldest.abort)
        return transport


def application(switch: LiveSwitch) -> Any:
    """The routes, as an ASGI application."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    handlers = Handlers(switch)
    both = (handlers.check_token, handlers.job)

    def route(
        path: str,
        method: str,
        handler: Callable[["Call"], tuple[int, Any]],
        *guards: Callable[["Call"], object],
    ) -> Route:
        places = asyncio.Semaphore(PUBLIC_MAX) if not guards else contextlib.nullcontext()

        async def endpoint(request: Request) -> Response:
            client = request.client.host if request.client else ""
            call = Call(dict(request.path_params), dict(request.headers), {}, client)
            try:
                if guards and "origin" in call.headers:
                    raise Refusal(403, "no page of a browser takes part here")
                for guard in guards:
                    await run_in_threadpool(guard, call)
                if guards:
                    call.body = await _body(request)
                async with places:
                    status, answer = await run_in_threadpool(handler, call)
            except Refusal as refusal:
                return JSONResponse({"error": str(refusal)}, refusal.status)
            if isinstance(answer, bytes):
                return Response(answer, status, media_type=content_type(answer))
            return Response(status_code=status) if answer is None else JSONResponse(answer, status)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            route("/v1/jobs", "POST", handlers.admit, handlers.check_token),
            route("/v1/jobs", "GET", handlers.list_jobs, handlers.check_token),
            route("/v1/jobs/{job}", "DELETE", handlers.leave, handlers.job),
            route("/v1/jobs/{job}/workers/{worker}", "PUT", handlers.bind_worker, handlers.job),
            route("/v1/jobs/{job}/racks/{rack}", "PUT", handlers.bind_rack, *both),
            route("/v1/jobs/{job}/lease", "POST", handlers.renew, handlers.job),
            route("/metrics", "GET", handlers.metrics),
            route("/healthz", "GET", handlers.health),
        ]
    )


async def _body(request: Any) -> dict[str, Any]:
    data = b""
    try:
        async with asyncio.timeout(REQUEST_S):
            async for part in request.stream():
                data += part
                if len(data) > BODY_BYTES_MAX:
                    raise Refusal(400, f"the request is longer than {BODY_BYTES_MAX} bytes")
    except TimeoutError:
        raise Refusal(408, f"the request did not come within {REQUEST_S:g} s") from None
    if not data:
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise Refusal(400, "the request is not JSON") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the request is not a JSON object")
    return body


class Call:
    """A request, freed of HTTP."""

    def __init__(
        self, path: dict[str, Any], headers: dict[str, str], body: dict[str, Any], client: str
    ) -> None:
        self.path, self.headers, self.body, self.client = path, headers, body, client

    def place(self, name: str) -> int:
        """A number of the path, which strangers may have made as long as they like."""
        text: str = self.path[name]
        if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
            raise Refusal(404, f"{name} is no number")
        return int(text)

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number of the body."""
        value = self.body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refusal(400, f"{name!r} must be a whole number")
        return value

    @contextlib.contextmanager
    def address(self, value: Any) -> Iterator[int]:
        """An address `ip:port` or `[ip]:port`; without an ip, or with 0.0.0.0 or ::, the client's own.

        It is lent: who keeps it longer than the call has to hold it (`hold_address`).
        """
        text = value if isinstance(value, str) else ""
        last = text.rpartition(":")[2]
        if not (last.isascii() and last.isdigit()):
            raise Refusal(400, f"{value!r} is not ip:port")
        try:
            host, port = split_address(text if not text.startswith(":") else f"0.0.0.0{text}", 0)
            meant = parse_ip(self.client if is_everywhere(host) else host)
        except (ValueError, UserError):
            raise Refusal(400, f"{value!r} is not ip:port") from None
        if not port:
            raise Refusal(400, f"{value!r} has no port")
        # Of IPv6 also ::1 counts as reserved; of IPv4 what is reserved ends with the address of everyone.
        nobodys = meant.is_multicast or meant.is_unspecified or (meant.version == 4 and meant.is_reserved)
        if nobodys or is_everyones(str(meant)):
            raise Refusal(400, f"{value!r} is not the address of one host")
        try:
            address = lend_address(str(meant), port)
        except UserError as error:
            raise Refusal(503, str(error)) from None
        try:
            yield address
        finally:
            give_back(address)


class Handlers:
    """What each route does."""

    def __init__(self, switch: LiveSwitch) -> None:
        self._switch = switch

    def admit(self, call: Call) -> tuple[int, Any]:
        name = call.body.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise Refusal(400, f"'name' must be 1 to {NAME_CHARACTERS_MAX} characters")
        if not name.isprintable():
            raise Refusal(400, "'name' has a character that cannot be shown, or is not Unicode")
        key = None
        if "key" in call.body:
            key = parse_key(str(call.body["key"]))
            if key is None:
                raise Refusal(400, "'key' must be 32 hexadecimal digits")
        if ("job" in call.body) != (key is not None):
            raise Refusal(400, "'job' and 'key' belong together: the job's own, to be admitted again")
        job = self._switch.admit(
            name,
            call.number("workers"),
            racks=call.number("racks", 1),
            rack=call.number("rack", 0),
            priority_max=call.number("priority_max", 255),
            slots_max=call.number("slots_max", 0),
            number=call.number("job") if key is not None else None,
            key=key,
            epoch=call.number("epoch", 0),
        )
        return 201, self._switch.describe(job)

    def list_jobs(self, call: Call) -> tuple[int, Any]:
        shards = [thread.shard for thread in self._switch.threads]
        return 200, {
            "policy": self._switch.options.policy,
            "slots": self._switch.slots,
            "shards": self._switch.ports,
            "draining": self._switch.registry.draining,
            "jobs": [
                {
                    "job": job.number,
                    "name": job.name,
                    "workers": job.workers,
                    "racks": job.racks,
                    "bound": sorted(job.addresses),
                    "slots_used": sum(int(shard.switch.jobs[0, job.number].used) for shard in shards),
                }
                for job in self._switch.registry.jobs()
            ],
        }

    def leave(self, call: Call) -> tuple[int, Any]:
        return 200, {"freed": self._switch.leave(self.job(call))}

    def bind_worker(self, call: Call) -> tuple[int, Any]:
        job = self.job(call)
        with call.address(call.body.get("address", "")) as address:
            self._switch.bind_worker(job, call.place("worker"), address, call.number("rack", 0))
        return 200, {}

    def bind_rack(self, call: Call) -> tuple[int, Any]:
        addresses = call.body.get("addresses")
        if not isinstance(addresses, list):
            raise Refusal(400, "'addresses' must be a list of ip:port, one a shard")
        job = self.job(call)
        with contextlib.ExitStack() as lent:
            parsed = [lent.enter_context(call.address(one)) for one in addresses[: SHARDS_MAX + 1]]
            self._switch.bind_rack(job, call.place("rack"), parsed)
        return 200, {}

    def renew(self, call: Call) -> tuple[int, Any]:
        self._switch.registry.renew(self.job(call))
        return 200, {"lease_s": self._switch.options.lease_s}

    def metrics(self, call: Call) -> tuple[int, Any]:
        return 200, metrics_text(self._switch, wants_openmetrics(call.headers.get("accept", "")))

    def health(self, call: Call) -> tuple[int, Any]:
        if self._switch.failure:
            return 503, {"status": "failed", "error": self._switch.failure}
        if self._switch.registry.draining:
            return 503, {"status": "draining"}
        return 200, {"status": "ok"}

    def job(self, call: Call) -> AdmittedJob:
        return self._switch.registry.find(call.place("job"), call.headers.get("x-paceline-key"))

    def check_token(self, call: Call) -> None:
        token = self._switch.options.token
        if not token:
            return
        given = call.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise Refusal(401, "the cluster's token is missing or wrong")
