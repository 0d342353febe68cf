"""What a running switch tells its operator: one line an event on stderr, as text or as JSON."""

import json
import sys
import threading
import time
from typing import Any, TextIO


class Events:
    """A log of events, and of nothing else; safe to use from any thread."""

    def __init__(
        self, as_json: bool = False, stream: TextIO | None = None, name: str = "paceline switch"
    ) -> None:
        self._as_json, self._stream, self._name = as_json, stream, name
        self._lock = threading.Lock()

    def __call__(self, event: str, text: str, **details: Any) -> None:
        """Tell `text` to people, `event` and `details` to programs."""
        if self._as_json:
            line = json.dumps({"time": round(time.time(), 3), "event": event, "text": text, **details})
        else:
            line = f"{self._name}: {text}"
        with self._lock:
            print(line, file=self._stream or sys.stderr, flush=True)
