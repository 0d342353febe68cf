"""The control plane over HTTP: who may do what, what is refused and how, the metrics, and the admission's answer."""

import contextlib
import http.client as http_client
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline import http_limits
from paceline.live.net import addresses, sockets
from paceline.live.switch import http
from paceline.live.switch.metrics import METRICS
from tests.live.switch.test_daemon import Running, running
from tests.live.workers import ask

TOKEN = "a token of sufficient length"


@pytest.fixture(scope="module")
def switch() -> Iterator[Running]:
    with running(token=TOKEN, jobs_max=4, shards=2, priority_max=200, slots_max=50) as made:
        yield made


@pytest.fixture
def job(switch: Running) -> Iterator[dict[str, Any]]:
    status, answer = ask(switch.port, "POST", "/v1/jobs", {"name": "a job", "workers": 2}, token=TOKEN)
    assert status == 201
    yield answer
    ask(switch.port, "DELETE", f"/v1/jobs/{answer['job']}", key=answer["key"])


def test_an_admission_says_all_that_an_agent_needs(switch: Running, job: dict[str, Any]) -> None:
    assert job["shards"] == switch.switch.ports
    assert len(job["shards"]) == 2
    assert job["slots"] == switch.switch.slots
    assert (job["policy"], job["auth"], job["elements"], job["epoch"], job["pool"]) == (
        "esa-plus",
        "header",
        64,
        0,
        0,
    )
    assert len(bytes.fromhex(job["key"])) == 16
    assert (job["priority_max"], job["slots_max"]) == (200, 50)
    for thread in switch.switch.threads:
        record = thread.shard.switch.jobs[0, job["job"]]
        assert (record.active, record.priority_max, record.slots_max) == (1, 200, 50)


def test_the_token_is_needed_to_admit_and_to_list(switch: Running, job: dict[str, Any]) -> None:
    for token in ("", "a token of sufficient lengtH", TOKEN + "x"):
        assert ask(switch.port, "POST", "/v1/jobs", {"name": "x", "workers": 1}, token=token)[0] == 401
        assert ask(switch.port, "GET", "/v1/jobs", token=token)[0] == 401
    status, answer = ask(switch.port, "GET", "/v1/jobs", token=TOKEN)
    assert status == 200
    assert answer["jobs"] == [
        {"job": job["job"], "name": "a job", "workers": 2, "racks": 1, "bound": [], "slots_used": 0}
    ]
    assert job["key"] not in str(answer)


def test_a_job_is_touched_only_by_who_has_its_key(switch: Running, job: dict[str, Any]) -> None:
    path = f"/v1/jobs/{job['job']}"
    other = "00" * 16
    for key in ("", other, job["key"][:-2], "no key"):
        assert ask(switch.port, "DELETE", path, key=key)[0] == 404
        assert ask(switch.port, "POST", f"{path}/lease", {}, key=key)[0] == 404
        assert ask(switch.port, "PUT", f"{path}/workers/0", {"address": ":9"}, key=key)[0] == 404
    assert ask(switch.port, "POST", f"{path}/lease", {}, key=job["key"])[0] == 200


def test_a_worker_is_bound_to_its_address_or_to_that_of_who_asks(
    switch: Running, job: dict[str, Any]
) -> None:
    path = f"/v1/jobs/{job['job']}/workers"
    assert ask(switch.port, "PUT", f"{path}/0", {"address": "10.1.2.3:9000"}, key=job["key"])[0] == 200
    assert ask(switch.port, "PUT", f"{path}/1", {"address": "0.0.0.0:9001"}, key=job["key"])[0] == 200
    members = switch.switch.threads[1].shard.members[job["job"]]
    assert int(members[0].address) == (0x0A010203 << 16) + 9000
    assert int(members[1].address) == (0x7F000001 << 16) + 9001
    for worker, address in (
        (2, "10.1.2.3:9000"),
        (0, "nowhere"),
        (0, "::1:9"),
        (0, "1.2.3.4:0"),
        (0, "1.2.3.4:\u0661"),
        (0, 7),
        (0, "1.2.3.4:70000"),
        (0, "224.0.0.1:9000"),
        (0, "255.255.255.255:9000"),
        (0, "127.255.255.255:9000"),
        (0, "[::ffff:127.255.255.255]:9000"),
        (0, "[fd00::1]:9000"),
        (0, "[ff02::1]:9000"),
        (0, "[ff0e::77]:9000"),
        (0, "[ff02::1%lo]:9000"),
        (0, "[fe80::1]:9000"),
        (0, "[::ffff:224.0.0.1]:9000"),
        (0, "[::ffff:255.255.255.255]:9000"),
        (0, f"[::ffff:127.0.0.1]:{switch.switch.ports[0]}"),
        (0, f"[::ffff:7f00:1]:{switch.switch.ports[0]}"),
        (0, f"127.0.0.1:{switch.switch.ports[0]}"),
        (1, f"127.0.0.1:{switch.switch.ports[1]}"),
    ):
        status, answer = ask(switch.port, "PUT", f"{path}/{worker}", {"address": address}, key=job["key"])
        assert status == 400, answer


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_switch_that_listens_everywhere_knows_all_its_addresses(host: str) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with running(host=host, token=TOKEN) as switch:
        job = ask(switch.port, "POST", "/v1/jobs", {"name": "x", "workers": 2}, token=TOKEN)[1]
        path = f"/v1/jobs/{job['job']}/workers/0"
        own = {"127.0.0.1", "127.0.0.9", sockets.own_address(), *(["[::1]"] if host == "::" else [])}
        for each in sorted(own):
            body = {"address": f"{each}:{switch.switch.ports[0]}"}
            status, answer = ask(switch.port, "PUT", path, body, key=job["key"])
            assert (status, "is a switch" in answer["error"]) == (400, True), (each, answer)


def test_a_job_that_names_ever_new_hosts_leaves_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    monkeypatch.setattr(addresses, "BOOK_HOSTS", 64)
    monkeypatch.setattr(addresses, "BOOK", addresses.new_book())
    monkeypatch.setattr(addresses, "_first_place", lambda *_: 0)
    monkeypatch.setattr(addresses, "_holders", {})
    with running(host="::", token=TOKEN) as switch:
        job, other = (
            ask(switch.port, "POST", "/v1/jobs", {"name": "x", "workers": 2}, token=TOKEN)[1]
            for _ in range(2)
        )
        for number in range(1, 150):
            path, body = f"/v1/jobs/{job['job']}/workers/0", {"address": f"[fd00::{number:x}]:9"}
            assert ask(switch.port, "PUT", path, body, key=job["key"])[0] == 200
            refused = {"address": f"[fd01::{number:x}]:9", "rack": 99}
            assert ask(switch.port, "PUT", path, refused, key=job["key"])[0] == 400
        assert list(addresses._holders.values()) == [1]
        path = f"/v1/jobs/{other['job']}/workers/0"
        assert ask(switch.port, "PUT", path, {"address": "[fd02::1]:9"}, key=other["key"])[0] == 200
        for each in (job, other):
            assert ask(switch.port, "DELETE", f"/v1/jobs/{each['job']}", key=each["key"])[0] == 200
        assert addresses._holders == {}


def test_a_rack_is_no_address_of_the_upper_switch_itself_and_a_worker_no_rack() -> None:
    with running(upper=True) as upper:
        request = {"name": "x", "workers": 2, "racks": 2}
        job = ask(upper.port, "POST", "/v1/jobs", request)[1]
        path = f"/v1/jobs/{job['job']}"
        own, rack = f"127.0.0.1:{upper.switch.ports[0]}", "127.0.0.1:9"

        def put(where: str, body: dict[str, Any]) -> int:
            return int(ask(upper.port, "PUT", f"{path}/{where}", body, key=job["key"])[0])

        assert put("racks/1", {"addresses": [own]}) == 400
        assert put("racks/1", {"addresses": [rack, own]}) == 400
        assert put("racks/1", {"addresses": [rack]}) == 200
        assert put("workers/0", {"address": rack, "rack": 1}) == 400
        assert put("workers/0", {"address": "127.0.0.1:10", "rack": 1}) == 200


def test_a_job_is_admitted_again_after_a_restart_and_no_other_in_its_place(switch: Running) -> None:
    request = {"name": "again", "workers": 3, "job": 2, "key": "11" * 16, "epoch": 7}
    for _ in range(2):
        status, answer = ask(switch.port, "POST", "/v1/jobs", request, token=TOKEN)
        assert (status, answer["job"], answer["key"], answer["epoch"]) == (201, 2, "11" * 16, 7)
    assert switch.switch.threads[0].shard.switch.jobs[0, 2].epoch == 7
    status, answer = ask(switch.port, "POST", "/v1/jobs", {**request, "workers": 2}, token=TOKEN)
    assert (status, answer["error"]) == (409, "job 2 has 3 workers here")
    assert ask(switch.port, "DELETE", "/v1/jobs/2", key="11" * 16)[0] == 200


def test_a_job_whose_number_a_newcomer_has_is_admitted_under_another_and_by_all_its_workers(
    switch: Running,
) -> None:
    status, newcomer = ask(switch.port, "POST", "/v1/jobs", {"name": "newcomer", "workers": 1}, token=TOKEN)
    assert status == 201
    request = {"name": "old", "workers": 2, "job": newcomer["job"], "key": "22" * 16}
    old = [ask(switch.port, "POST", "/v1/jobs", request, token=TOKEN) for _ in range(2)]
    assert [status for status, _ in old] == [201, 201]
    number = old[0][1]["job"]
    assert number == old[1][1]["job"] != newcomer["job"]
    assert ask(switch.port, "POST", f"/v1/jobs/{number}/lease", {}, key="22" * 16)[0] == 200
    assert ask(switch.port, "POST", f"/v1/jobs/{newcomer['job']}/lease", {}, key=newcomer["key"])[0] == 200
    # A switch with fewer places than the one before has another number for it too.
    status, answer = ask(
        switch.port, "POST", "/v1/jobs", {**request, "job": 9, "key": "33" * 16}, token=TOKEN
    )
    assert status == 201
    assert answer["job"] < switch.switch.options.jobs_max
    for job, key in ((newcomer["job"], newcomer["key"]), (number, "22" * 16), (answer["job"], "33" * 16)):
        assert ask(switch.port, "DELETE", f"/v1/jobs/{job}", key=key)[0] == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "the request is not JSON"),
        (b"[" * 50_000, "the request is not JSON"),
        (b"[1]", "not a JSON object"),
        (b"x" * 100_000, "longer than"),
        ({"workers": 1}, "'name' must be"),
        ({"name": "x"}, "'workers' must be a whole number"),
        ({"name": "a lone surrogate: \udce9", "workers": 1}, "cannot be shown"),
        ({"name": "two\nlines", "workers": 1}, "cannot be shown"),
        ({"name": "x", "workers": "1"}, "'workers' must be a whole number"),
        ({"name": "x", "workers": 65}, "workers is 65, not within 1..64"),
        ({"name": "x", "workers": 1, "racks": 0}, "racks is 0"),
        ({"name": "x", "workers": 1, "priority_max": 256}, "priority_max is 256"),
        ({"name": "x", "workers": 1, "job": 1}, "'job' and 'key' belong together"),
        ({"name": "x", "workers": 1, "job": 1, "key": "xyz"}, "32 hexadecimal digits"),
        ({"name": "x", "workers": 1, "job": -1, "key": "11" * 16}, "job is -1, not within 0..65535"),
    ],
)
def test_bad_requests_are_told_in_a_sentence(switch: Running, body: Any, told: str) -> None:
    status, answer = ask(switch.port, "POST", "/v1/jobs", body, token=TOKEN)
    assert status == 400
    assert told in answer["error"]


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 400, "-1", "1.5", "%D9%A3", "%00", "0x1"])
def test_a_number_in_a_path_that_is_none_is_not_there(
    switch: Running, job: dict[str, Any], number: str
) -> None:
    body = {"address": "127.0.0.1:9", "addresses": ["127.0.0.1:9"]}
    for method, path in (
        ("DELETE", f"/v1/jobs/{number}"),
        ("POST", f"/v1/jobs/{number}/lease"),
        ("PUT", f"/v1/jobs/{number}/workers/0"),
        ("PUT", f"/v1/jobs/{job['job']}/workers/{number}"),
        ("PUT", f"/v1/jobs/{job['job']}/racks/{number}"),
    ):
        assert ask(switch.port, method, path, body, token=TOKEN, key=job["key"])[0] == 404, path


def test_a_page_in_a_browser_takes_no_place_of_a_job() -> None:
    """A page from elsewhere may post to loopback, where no token is asked for."""
    with running() as open_switch:
        connection = http_client.HTTPConnection("127.0.0.1", open_switch.port, timeout=10.0)
        headers = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"}
        connection.request("POST", "/v1/jobs", '{"name": "page", "workers": 1}', headers)
        assert connection.getresponse().status == 403
        connection.close()
        assert open_switch.switch.registry.jobs() == []


def test_an_answer_that_nobody_takes_is_given_up(switch: Running) -> None:
    """By the kernel; that it does so is Linux's, that it is asked to is seen on the server's side."""
    with socket.create_connection(("127.0.0.1", switch.port), 5.0) as one:
        deadline, found = time.monotonic() + 20.0, 0
        while not found and time.monotonic() < deadline:
            time.sleep(0.05)
            found = sum(_user_timeout_ms(int(fd.name), one.getsockname()) for fd in OWN_FILES.iterdir())
        assert found == int(http_limits.UNREAD_S * 1e3)


OWN_FILES = Path("/proc/self/fd")


def _user_timeout_ms(fd: int, peer: object) -> int:
    """Of this process's connection with that peer; 0: it is none."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as found:
        if found.family == socket.AF_INET and found.getpeername() == peer:
            return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    return 0


def test_a_job_of_several_racks_needs_an_upper_switch(switch: Running) -> None:
    status, answer = ask(
        switch.port, "POST", "/v1/jobs", {"name": "x", "workers": 4, "racks": 2}, token=TOKEN
    )
    assert (status, "needs a switch with --upstream" in answer["error"]) == (409, True)


def test_there_is_an_end_to_jobs(switch: Running) -> None:
    made = []
    for _ in range(4):
        status, answer = ask(switch.port, "POST", "/v1/jobs", {"name": "x", "workers": 1}, token=TOKEN)
        assert status == 201
        made.append(answer)
    status, answer = ask(switch.port, "POST", "/v1/jobs", {"name": "x", "workers": 1}, token=TOKEN)
    assert (status, answer["error"]) == (409, "this switch serves 4 jobs already")
    assert len({answer["key"] for answer in made}) == 4
    for answer in made:
        assert ask(switch.port, "DELETE", f"/v1/jobs/{answer['job']}", key=answer["key"]) == (
            200,
            {"freed": 0},
        )


def test_half_open_connections_keep_nobody_from_being_admitted(switch: Running) -> None:
    half = []
    try:
        for k in range(600):
            one = socket.create_connection(("127.0.0.1", switch.port), 5.0)
            if k % 2:
                one.sendall(b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\n")
            half.append(one)
        status, answer = ask(switch.port, "POST", "/v1/jobs", {"name": "honest", "workers": 1}, token=TOKEN)
        assert status == 201, answer
        assert ask(switch.port, "DELETE", f"/v1/jobs/{answer['job']}", key=answer["key"])[0] == 200
        assert ask(switch.port, "GET", "/healthz")[0] == 200
    finally:
        for one in half:
            one.close()


def test_of_too_many_half_open_connections_the_oldest_are_closed(switch: Running, monkeypatch: Any) -> None:
    monkeypatch.setattr(http_limits, "IDLE_MAX", 4)
    monkeypatch.setattr(http_limits, "REQUEST_S", 300.0)
    with contextlib.ExitStack() as opened:
        connect = partial(socket.create_connection, ("127.0.0.1", switch.port), 5.0)
        half = [opened.enter_context(connect()) for _ in range(10)]
        for one in half[:6]:
            one.settimeout(30.0)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b"", "closed, and nothing said"
        assert select.select(half[6:], [], [], 0)[0] == [], "the newest stay open"


def test_who_asks_without_a_token_keeps_no_job_waiting(
    switch: Running, job: dict[str, Any], monkeypatch: Any
) -> None:
    """As many as there are threads ask for metrics, and get none."""
    held = threading.Event()
    monkeypatch.setattr(http, "metrics_text", lambda *_: (held.wait(60), b"")[1])
    many = []
    try:
        for _ in range(100):
            one = socket.create_connection(("127.0.0.1", switch.port), 5.0)
            one.sendall(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            many.append(one)
        for _ in range(5):
            path = f"/v1/jobs/{job['job']}/lease"
            assert ask(switch.port, "POST", path, {}, key=job["key"])[0] == 200
            assert ask(switch.port, "GET", "/healthz")[0] == 200
    finally:
        held.set()
        for one in many:
            one.close()


def test_a_connection_that_asks_for_nothing_is_closed(switch: Running, monkeypatch: Any) -> None:
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.2)
    with socket.create_connection(("127.0.0.1", switch.port), 5.0) as silent:
        silent.settimeout(30.0)
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b"", "closed, and nothing said"


def test_who_has_no_token_is_told_before_a_body_is_read(switch: Running) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", switch.port), 5.0) as stranger:
        stranger.settimeout(30.0)
        stranger.sendall(head)
        assert b" 401 " in stranger.recv(100)


def test_a_body_that_does_not_come_is_refused(switch: Running, monkeypatch: Any) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    head = f"POST /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 9\r\n\r\n"
    with socket.create_connection(("127.0.0.1", switch.port), 5.0) as slow:
        slow.settimeout(30.0)
        slow.sendall(head.encode())
        assert b" 408 " in slow.recv(100)


def test_health_and_metrics(switch: Running, job: dict[str, Any]) -> None:
    assert ask(switch.port, "GET", "/healthz") == (200, {"status": "ok"})
    status, answer = ask(switch.port, "GET", "/metrics")
    text = answer["text"]
    assert status == 200
    for name, (kind, _, _) in METRICS.items():
        assert f"# TYPE {name} {kind}" in text
    assert f'paceline_slots_used{{job="{job["job"]}",name="a job",shard="1"}} 0.0' in text
    assert 'paceline_drops_total{job="",name="",reason="bad_magic"} 0.0' in text
    assert f'paceline_arrival_lag_seconds_count{{job="{job["job"]}",name="a job",worker="1"}} 0.0' in text


def test_static_pools_are_shared_out_and_come_back() -> None:
    with running(policy="switchml") as switch:
        wanted = {"name": "x", "workers": 1, "slots_max": 60}
        first = ask(switch.port, "POST", "/v1/jobs", wanted)[1]
        second = ask(switch.port, "POST", "/v1/jobs", wanted)[1]
        assert (first["pool"], second["pool"]) == (60, 60)
        records = switch.switch.threads[0].shard.switch.jobs[0]
        assert (records[0].pool_base, records[1].pool_base) == (0, 60)
        assert ask(switch.port, "POST", "/v1/jobs", wanted) == (
            409,
            {"error": "no pool of 60 places is left"},
        )
        ask(switch.port, "DELETE", f"/v1/jobs/{first['job']}", key=first["key"])
        third = ask(switch.port, "POST", "/v1/jobs", wanted)[1]
        assert records[third["job"]].pool_base == 0
