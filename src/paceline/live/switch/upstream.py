"""A rack switch's side of the control plane of the upper switch.

A switch under another asks it for every job it admits, so that numbers and keys agree in the whole tree; tells it
its own addresses for jobs of several racks, and where their workers are; and renews their leases.
"""

from collections.abc import Sequence
from typing import Any

from paceline.live.net.sockets import pack_address, resolve, unpack_address
from paceline.live.switch.jobs import Job, Refusal
from paceline.live.switch_client import ControlError, ControlPlane

TIMEOUT_S = 5.0


class Upstream:
    """The upper switch at `host:port`."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self.host = resolve(host)
        self.shards: list[int] = []
        self._control = ControlPlane(self.host, port, token, TIMEOUT_S)

    def admit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Admit a job there; remembers where its shards are."""
        answer = self._ask("POST", "/v1/jobs", request)
        self.shards = [pack_address(self.host, int(port)) for port in answer["shards"]]
        return answer

    def bind_rack(self, job: Job, addresses: Sequence[int]) -> None:
        """Tell where this switch's own shards are."""
        shown = ["{}:{}".format(*unpack_address(address)) for address in addresses]
        self._ask("PUT", f"/v1/jobs/{job.number}/racks/{job.rack}", {"addresses": shown}, job)

    def bind_worker(self, job: Job, worker: int, address: int) -> None:
        """Tell that a worker lives in this rack."""
        shown = "{}:{}".format(*unpack_address(address))
        self._ask("PUT", f"/v1/jobs/{job.number}/workers/{worker}", {"address": shown, "rack": job.rack}, job)

    def renew(self, job: Job) -> bool:
        """Renew a lease; False if the upper switch does not know the job."""
        try:
            self._ask("POST", f"/v1/jobs/{job.number}/lease", {}, job)
        except Refusal as refusal:
            if refusal.status == 404:
                return False
            raise
        return True

    def leave(self, job: Job) -> None:
        """The job leaves there too; a neighbour rack may have said so before."""
        try:
            self._ask("DELETE", f"/v1/jobs/{job.number}", None, job)
        except Refusal as refusal:
            if refusal.status != 404:
                raise

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, job: Job | None = None
    ) -> dict[str, Any]:
        try:
            return self._control.call(method, path, body, None if job is None else job.key)
        except ControlError as error:
            what = "refused" if error.status else "does not answer"
            raise Refusal(error.status or 503, f"the upper switch {what}: {error.reason}") from None
