"""All that is watched, looked at twice a second; who listens gets a snapshot, then what has changed.

A listener that does not take its messages is let go, and comes back for a new snapshot. A source that cannot be read
is shown as it was last, with the reason; the others go on.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paceline.dashboard.run_source import RunSource
from paceline.dashboard.switch_source import SwitchSource
from paceline.dashboard.views import Snapshot, as_json
from paceline.errors import UserError

LOG = logging.getLogger("paceline.dashboard")
EVERY_S = 0.5
"""Between two looks."""
WAITING_MAX = 64
"""Messages that a listener may leave lying."""
LISTENERS_MAX = 128
"""One more, and the one that came first is let go: who does not listen keeps nobody else out."""
Json = dict[str, Any]


class Hub:
    """The sources, their last snapshot, and the listeners."""

    def __init__(
        self, runs: Sequence[RunSource], switches: Sequence[SwitchSource], steering: bool = False
    ) -> None:
        self.runs = {_unique(run.name, i, runs): run for i, run in enumerate(runs)}
        self.switches = {source.address: source for source in switches}
        self.steering = steering
        self.latest: Json = {}
        """The last snapshot, as JSON."""
        self.polls = 0
        self._listeners: dict[asyncio.Queue[str | None], None] = {}  # in the order in which they came
        self._pool = ThreadPoolExecutor(
            max_workers=max(2, len(runs) + len(switches)), thread_name_prefix="look"
        )
        self._read_in: dict[str, Json] = {}
        """The last of each source that could be read."""
        self._closed = False

    async def poll(self) -> None:
        """One look at everything; listeners are told."""
        loop = asyncio.get_running_loop()
        sources: list[tuple[str, RunSource | SwitchSource]] = [*self.runs.items(), *self.switches.items()]
        views = await asyncio.gather(
            *(loop.run_in_executor(self._pool, self._look, name, source) for name, source in sources)
        )
        runs = dict(zip(self.runs, views[: len(self.runs)], strict=True))
        switches = dict(zip(self.switches, views[len(self.runs) :], strict=True))
        whole: Json = as_json(Snapshot(time.time(), {}, {}, self.steering))
        snapshot = {**whole, "runs": runs, "switches": switches}
        patch = difference(self.latest, snapshot)
        first, self.latest = not self.latest, snapshot
        self.polls += 1
        if not first:
            self._tell(message("patch", patch))

    def _look(self, name: str, source: RunSource | SwitchSource) -> Json:
        try:
            view = source.view() if isinstance(source, RunSource) else source.poll()
            self._read_in[name] = as_json(view)
        except Exception as error:
            # One source that cannot be read must not stop the others, whatever is wrong with it.
            expected = isinstance(error, UserError | OSError)
            LOG.log(
                logging.WARNING if expected else logging.ERROR, "%s: %r", name, error, exc_info=not expected
            )
            self._read_in[name] = {**self._read_in.get(name, {"name": name}), "trouble": str(error)}
        return self._read_in[name]

    def _tell(self, text: str) -> None:
        for queue in list(self._listeners):
            try:
                queue.put_nowait(text)
            except asyncio.QueueFull:
                self._let_go(queue)

    def _let_go(self, queue: "asyncio.Queue[str | None]") -> None:
        self._listeners.pop(queue, None)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    async def listen(self) -> AsyncIterator[str]:
        """Server-sent events: `snapshot`, then `patch` after `patch`."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(WAITING_MAX)
        while not self.latest and not self._closed:
            await asyncio.sleep(0.02)
        if len(self._listeners) >= LISTENERS_MAX:
            self._let_go(next(iter(self._listeners)))
        self._listeners[queue] = None
        try:
            yield message("snapshot", self.latest)
            while (text := await queue.get()) is not None:
                yield text
        finally:
            self._listeners.pop(queue, None)

    async def run(self) -> None:
        """Look again and again, until `close`."""
        while not self._closed:
            began = time.monotonic()
            await self.poll()
            await asyncio.sleep(max(0.05, EVERY_S - (time.monotonic() - began)))

    def end(self) -> None:
        """No more looks; listeners end."""
        self._closed = True
        for queue in list(self._listeners):
            self._let_go(queue)

    def close(self) -> None:
        """Give the sources back, after the last look."""
        self.end()
        self._pool.shutdown(wait=True)
        for run in self.runs.values():
            run.close()


def message(event: str, data: Json) -> str:
    """One server-sent event."""
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def difference(before: Any, after: Any) -> Any:
    """The JSON merge patch (RFC 7386) that makes `after` of `before`; no None in either, lists are replaced whole."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


def _unique(name: str, index: int, runs: Sequence[RunSource]) -> str:
    return name if [run.name for run in runs].count(name) == 1 else f"{name} ({index + 1})"
