"""Attacks on the control plane of a live switch: nothing they do may end a job, or keep one from being admitted.

    python -m tests.live.hostile_control --requests 5000

Half-open connections, bodies that are too long or no JSON, names and addresses that must not be, wrong tokens and keys,
replayed admissions, paths and headers of nonsense. Every answer is a refusal, none an error of the server, and
between them an honest job renews its lease, another is admitted and leaves, and `/metrics` answers.
"""

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.live.processes import process, resident_kib
from tests.live.workers import ask

TOKEN = "token-of-the-cluster"
NAMES: tuple[Any, ...] = (
    "", "x" * 201, "\udce9", "two\nlines", "\x00", 'quote"', "a" * 60_000, None, 7, ["x"], {"x": 1}, "\u202e\u0007",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (0, -1, 65, 1 << 31, 1 << 64, 1.5, "1", True, None, [], 10**400)
ADDRESSES: tuple[Any, ...] = (
    "255.255.255.255:9", "127.255.255.255:9", "224.0.0.1:9", "0.0.0.0:0", ":0", "1.2.3.4", "1.2.3.4:99999",
    "1.2.3.4:-1", "[::1]:9", "::1", "localhost:9", "1.2.3.4:9:9", "", None, 7, ["1.2.3.4:9"], "1.2.3.4:\u0661",
    "999.1.1.1:9",
)  # fmt: skip
BODIES = (b"{", b"[1]", b"[" * 60_000, b"\xff" * 50, b"null", b'{"name": 1e999}', b"x" * 70_000, b'"text"')


class Attack:
    """Requests by a seed, against a switch that serves an honest job."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.random = port, random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.open: list[socket.socket] = []
        status, self.honest = ask(port, "POST", "/v1/jobs", {"name": "honest", "workers": 2}, token=TOKEN)
        assert status == 201

    def one(self) -> None:
        """One attack of a random kind."""
        kind = self.random.choice(
            (
                self.name,
                self.number,
                self.address,
                self.body,
                self.stranger,
                self.replay,
                self.path,
                self.half,
                self.raw,
            )
        )
        status = kind()
        self.answers[f"{kind.__name__} {status}"] += 1
        assert status < 500, f"{kind.__name__} made the server fail: {status}"

    def _ask(self, method: str, path: str, body: Any, **more: str) -> int:
        return ask(self.port, method, path, body, **more)[0]

    def name(self) -> int:
        status, answer = ask(
            self.port, "POST", "/v1/jobs", {"name": self.random.choice(NAMES), "workers": 1}, token=TOKEN
        )
        return self._forget(status, answer)

    def number(self) -> int:
        field = self.random.choice(("workers", "racks", "rack", "priority_max", "slots_max", "epoch", "job"))
        request = {"name": "x", "workers": 1, field: self.random.choice(NUMBERS)}
        if self.random.random() < 0.5:
            request["key"] = self.random.choice(("", "zz" * 16, "11" * 15, "11" * 16, 5))
        status, answer = ask(self.port, "POST", "/v1/jobs", request, token=TOKEN)
        return self._forget(status, answer)

    def _forget(self, status: int, answer: dict[str, Any]) -> int:
        """What turned out to be a good request leaves again."""
        if status == 201:
            self._ask("DELETE", f"/v1/jobs/{answer['job']}", None, key=answer["key"])
        return status

    def address(self) -> int:
        path = f"/v1/jobs/{self.honest['job']}/workers/{self.random.choice((0, 1, 2, 64, 10**9))}"
        own = f"127.0.0.1:{self.random.choice(self.honest['shards'])}"
        status = self._ask(
            "PUT", path, {"address": self.random.choice((*ADDRESSES, own))}, key=self.honest["key"]
        )
        assert status != 200, "no such address is bound"
        return status

    def body(self) -> int:
        return self._ask("POST", "/v1/jobs", self.random.choice(BODIES), token=TOKEN)

    def stranger(self) -> int:
        """A wrong token or key, at everything that needs one."""
        job = self.honest["job"]
        method, path = self.random.choice(
            (("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("DELETE", f"/v1/jobs/{job}"),
             ("POST", f"/v1/jobs/{job}/lease"), ("PUT", f"/v1/jobs/{job}/workers/0"),
             ("PUT", f"/v1/jobs/{job}/racks/0"))
        )  # fmt: skip
        body = None if method == "GET" else {"name": "x", "workers": 1, "address": "1.2.3.4:9"}
        status = self._ask(method, path, body, token=self.random.choice(("", "wrong")), key="00" * 16)
        assert status in (401, 404), status
        return status

    def replay(self) -> int:
        """An admission that was heard on the way, given again: it is the same job, and nobody else's."""
        request = {"name": "honest", "workers": 2, "job": self.honest["job"], "key": self.honest["key"]}
        status, answer = ask(self.port, "POST", "/v1/jobs", request, token=TOKEN)
        assert (status, answer["job"]) == (201, self.honest["job"])
        return status

    def path(self) -> int:
        words = (
            "v1",
            "jobs",
            "-1",
            "0",
            "%00",
            "..",
            "9" * 50,
            "9" * 5000,
            "é",
            "workers",
            "lease",
            "metrics",
            "",
        )
        path = "/" + "/".join(self.random.choices(words, k=self.random.randint(1, 6)))
        method = self.random.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"))
        return self._ask(method, path.encode("ascii", "replace").decode(), None, token=TOKEN, key="00" * 16)

    def half(self) -> int:
        """A connection that never asks."""
        one = socket.create_connection(("127.0.0.1", self.port), 5.0)
        one.sendall(
            self.random.choice(
                (b"", b"GET", b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
            )
        )
        self.open.append(one)
        if len(self.open) > 600:
            self.open.pop(0).close()
        return 0

    def raw(self) -> int:
        """Bytes that are no request."""
        with socket.create_connection(("127.0.0.1", self.port), 5.0) as one, contextlib.suppress(OSError):
            one.sendall(self.random.randbytes(self.random.randint(1, 3000)) + b"\r\n\r\n")
            one.shutdown(socket.SHUT_WR)
            answer = one.recv(64)
            return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0
        return 0

    def check(self) -> None:
        """The honest still get what they ask for."""
        lease = f"/v1/jobs/{self.honest['job']}/lease"
        assert self._ask("POST", lease, {}, key=self.honest["key"]) == 200
        status, answer = ask(self.port, "POST", "/v1/jobs", {"name": "late", "workers": 1}, token=TOKEN)
        assert status == 201, answer
        assert self._ask("DELETE", f"/v1/jobs/{answer['job']}", None, key=answer["key"]) == 200
        assert self._ask("GET", "/metrics", None) == 200
        status, answer = ask(self.port, "GET", "/v1/jobs", token=TOKEN)
        assert [job["name"] for job in answer["jobs"]] == ["honest"]


def attack(requests: int, seed: int) -> dict[str, Any]:
    """All of it against a new switch; what was answered how often, and how memory grew."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.write_text(TOKEN)
        token.chmod(0o600)
        with process("--token-file", str(token)) as (switch, port):
            made = Attack(port, seed)
            before_kib = 0
            for k in range(requests):
                made.one()
                if k % 100 == 99:
                    made.check()
                if k == requests // 4:
                    before_kib = resident_kib(switch.pid)
            made.check()
            grown_kib = resident_kib(switch.pid) - before_kib
            for one in made.open:
                one.close()
    return {"requests": requests, "answers": dict(sorted(made.answers.items())), "grown_kib": grown_kib}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(attack(options.requests, options.seed), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
