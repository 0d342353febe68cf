"""`paceline switch`: the live software switch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.output import finite

if TYPE_CHECKING:
    from paceline.live.switch.daemon import SwitchOptions

HELP = """Run a switch: sum the gradients of training jobs in the network, over UDP.

Jobs come through the control plane (HTTP, the port of --listen); their packets through one UDP port a shard, the ports
after it. A job is admitted with the cluster's token and gets a key of its own. See docs/switch.md.

Ends on SIGTERM: new jobs are refused, and it waits for those it has, at most --drain-timeout; a second signal ends it
at once.

Exit code: 0 ended, no job left; 1 a shard failed; 2 a mistake in what was given; 3 ended while jobs were still there.

Examples:

  paceline switch

  paceline switch --listen 10.0.0.1:7070 --token-file token --shards 4 --memory 256MiB

  paceline switch --dashboard

  paceline switch --listen 127.0.0.1:7171 --upper

  paceline switch --listen 127.0.0.1:7070 --upstream 127.0.0.1:7171

  paceline switch --listen 10.0.0.1:7070 --token-file token --tls-cert switch.pem --tls-key switch.key

  paceline switch --policy atp --drop 0.01 --seed 7 --pcap packets.pcap
"""
EXIT_JOBS_LEFT = 3
MTU_MIN, MTU_MAX = 576, 65_535


def switch(
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Control plane; shards take the ports after it. Port 0: any."),
    ] = "127.0.0.1:7070",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Aggregator memory of all shards, e.g. 64MiB.")
    ] = "64MiB",
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="esa-plus, esa, atp, switchml, never, always-preempt or coin-flip."
        ),
    ] = "esa-plus",
    shards: Annotated[
        int, typer.Option(min=1, help="One a core: each has its own port, memory and thread.")
    ] = 1,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The cluster's token; needed to listen beyond loopback."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Control plane over TLS: the certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="And its key (PEM).")] = None,
    upper: Annotated[
        bool, typer.Option("--upper", help="Sum rack switches (those with --upstream).")
    ] = False,
    upstream: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Be a rack switch under the upper switch there; https:// before it, #sha256=HEX behind it or "
            "PACELINE_SWITCH_CA: over TLS.",
        ),
    ] = "",
    auth: Annotated[str, typer.Option(metavar="header|full", help="What a packet's tag covers.")] = "header",
    mtu: Annotated[
        int,
        typer.Option(
            metavar="BYTES", help="Widest packet to serve; default: the interface's MTU.", show_default=False
        ),
    ] = 0,
    jobs: Annotated[int, typer.Option(min=1, max=65_535, help="Most jobs at a time.")] = 64,
    priority_max: Annotated[int, typer.Option(min=0, max=255, help="Highest priority of any job.")] = 255,
    slots_max: Annotated[
        int, typer.Option(min=0, help="Most aggregators of one job in a shard; 0: all of them.")
    ] = 0,
    lease: Annotated[
        float,
        typer.Option(
            callback=finite,
            metavar="SECONDS",
            min=0.5,
            max=1e8,
            help="A job that is silent for so long is evicted.",
        ),
    ] = 10.0,
    drain_timeout: Annotated[
        float,
        typer.Option(
            callback=finite,
            metavar="SECONDS",
            min=0.0,
            max=1e8,
            help="How long SIGTERM waits for jobs to leave.",
        ),
    ] = 30.0,
    drop: Annotated[
        float, typer.Option(callback=finite, metavar="P", help="For tests: lose packets, in and out.")
    ] = 0.0,
    duplicate: Annotated[
        float, typer.Option(callback=finite, metavar="P", help="For tests: double packets, in and out.")
    ] = 0.0,
    reorder: Annotated[
        float, typer.Option(callback=finite, metavar="P", help="For tests: hold arriving packets back.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of --drop, --duplicate, --reorder and coin-flip.")] = 1,
    pcap: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write every packet that is served; open to Wireshark."),
    ] = None,
    pcap_size: Annotated[
        str, typer.Option(metavar="SIZE", help="A capture of this size becomes FILE.1, and a new one begins.")
    ] = "256MiB",
    log_json: Annotated[bool, typer.Option("--log-json", help="Events as JSON, one a line.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the switch in the browser while it runs; prints where.")
    ] = False,
) -> None:
    from paceline.live.net.addresses import is_ipv6, resolve
    from paceline.live.net.sockets import elements_for
    from paceline.live.switch.daemon import SwitchOptions
    from paceline.live.switch_client import ControlPlane
    from paceline.live.switch_tls import trust_in
    from paceline.secret_files import read_token

    name, port = _place(listen, "--listen")
    host = resolve(name)
    above = ControlPlane.parse(upstream, trust=trust_in()) if upstream else None
    _serve(
        SwitchOptions(
            host=host,
            port=port,
            memory_bytes=_size(memory, "--memory"),
            policy=policy,
            shards=shards,
            token=read_token(token_file),
            tls_certificate=tls_cert,
            tls_key=tls_key,
            upper=upper,
            upstream=(above.host, above.port) if above is not None else None,
            upstream_trust=above.trust if above is not None else None,
            auth=auth,
            elements=elements_for(_checked_mtu(mtu), is_ipv6(host)) if mtu else 0,
            jobs_max=jobs,
            priority_max=priority_max,
            slots_max=slots_max,
            lease_s=lease,
            drain_s=drain_timeout,
            drop=drop,
            duplicate=duplicate,
            reorder=reorder,
            seed=seed,
            pcap=pcap,
            pcap_bytes=_size(pcap_size, "--pcap-size"),
        ),
        log_json,
        dashboard,
    )


switch.__doc__ = HELP


def _place(text: str, option: str) -> tuple[str, int]:
    from paceline.errors import UserError
    from paceline.live.net.addresses import split_address

    try:
        return split_address(text, 7070)
    except ValueError:
        raise UserError(f"{text!r} is not HOST:PORT", place=option) from None


def _size(text: str, place: str) -> int:
    from paceline.errors import UserError
    from paceline.units import parse_size_bytes

    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise UserError(str(error), place=place) from None


def _checked_mtu(mtu: int) -> int:
    from paceline.errors import UserError

    if not MTU_MIN <= mtu <= MTU_MAX:
        raise UserError(
            f"{mtu} is no MTU: {MTU_MIN} (what every IPv4 host takes) to {MTU_MAX}; Ethernet has 1500, jumbo"
            " frames 9000",
            place="--mtu",
        )
    return mtu


def _serve(options: "SwitchOptions", log_json: bool, dashboard: bool = False) -> None:
    import signal
    import subprocess
    import threading

    from paceline.errors import EXIT_FAILED
    from paceline.live.net.addresses import show_address
    from paceline.live.switch.daemon import LiveSwitch, announce_compilation
    from paceline.live.switch.http import ControlServer
    from paceline.live.switch.jobs import Events
    from paceline.live.switch_tls import fingerprint_of

    events = Events(log_json)
    announce_compilation()
    running = LiveSwitch(options, events)
    asked = threading.Event()
    page: subprocess.Popen[bytes] | None = None

    def on_signal(number: int, frame: object) -> None:
        if asked.is_set():
            running.ended.set()
        asked.set()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        control = ControlServer(running)
        control.start()
        fingerprint = fingerprint_of(options.tls_certificate) if options.tls_certificate else ""
        secured = f" (TLS, sha256={fingerprint})" if fingerprint else ""
        events(
            "listening",
            f"listening on {show_address(options.host, control.port)}{secured}, "
            f"packets on {', '.join(map(str, running.ports))}; "
            f"{options.policy}, {running.slots} aggregators of {running.elements} integers a shard",
            host=options.host,
            port=control.port,
            shards=running.ports,
            slots=running.slots,
            elements=running.elements,
            policy=options.policy,
            fingerprint=fingerprint,
        )
        if dashboard:
            from paceline.commands.dashboard import start_beside

            page = start_beside(["--switch", show_address(options.host, control.port)])
        while not asked.wait(0.2) and not running.ended.is_set():
            pass
        empty = running.failure == "" and running.drain()
        control.close()
    finally:
        running.close()
        if page is not None:
            page.terminate()
            page.wait(10)
        for number, handler in previous.items():
            signal.signal(number, handler)
    if running.failure:
        raise typer.Exit(EXIT_FAILED)
    left = len(running.registry.jobs())
    events("ended", f"ended; {left} jobs were still here" if left else "ended", jobs=left)
    if not empty:
        raise typer.Exit(EXIT_JOBS_LEFT)
