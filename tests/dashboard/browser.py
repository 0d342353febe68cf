"""Chromium without a window, by its driver's own protocol (WebDriver: JSON over HTTP), and no more than that."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element, by the standard."""
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--force-device-scale-factor=1", "--hide-scrollbars",
)  # fmt: skip


def packed(png: bytes) -> bytes:
    """The same picture in fewer bytes: a browser filters its lines in a hurry, and flat areas pack best as they are."""
    at, chunks = 8, list[tuple[bytes, bytes]]()
    while at < len(png):
        length = int.from_bytes(png[at : at + 4])
        chunks.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += 12 + length
    header = chunks[0][1]
    depth = {2: 3, 6: 4}[header[9]]
    size = int.from_bytes(header[:4]) * depth
    data = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    before, lines = bytes(size), []
    for start in range(0, len(data), size + 1):
        before = unfiltered(data[start], data[start + 1 : start + 1 + size], before, depth)
        lines.append(b"\0" + before)
    chunks = [chunks[0], (b"IDAT", zlib.compress(b"".join(lines), 9)), (b"IEND", b"")]
    return png[:8] + b"".join(
        len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4) for kind, data in chunks
    )


def unfiltered(how: int, line: bytes, above: bytes, depth: int) -> bytes:
    """A line of a PNG picture as it is: each byte was told by its difference to those left of it and above."""
    made = bytearray(line)
    for i, value in enumerate(line):
        left, up = made[i - depth] if i >= depth else 0, above[i]
        corner = above[i - depth] if i >= depth else 0
        nearest = min((left, up, corner), key=lambda each: abs(left + up - corner - each))
        made[i] = (value + (0, left, up, (left + up) // 2, nearest)[how]) & 255
    return bytes(made)


class BrowserError(Exception):
    """The driver refused; its own words."""


def missing() -> str:
    """Why there is no browser here; empty if there is one."""
    if shutil.which("chromedriver") is None:
        return "needs chromedriver (Debian: chromium-driver)"
    if shutil.which("chromium") is None and shutil.which("google-chrome") is None:
        return "needs Chromium (Debian: chromium)"
    return ""


class Browser:
    """One page."""

    def __init__(self, base: str, session: str) -> None:
        self._base, self._session = base, session

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return _ask(f"{self._base}/session/{self._session}{path}", method, body)

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Go there, in a window of this size."""
        self.resize(width, height)
        self._call("POST", "/url", {"url": url})

    def resize(self, width: int, height: int) -> None:
        """The page's own size, phones' too: a window alone would not get that narrow."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        """A command of Chromium's own."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def js(self, script: str, *arguments: Any) -> Any:
        """The value of a script: `return ...`."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, css: str) -> str:
        """The first element; it must be there."""
        found: dict[str, str] = self._call("POST", "/element", {"using": "css selector", "value": css})
        return found[ELEMENT]

    def click(self, css: str) -> None:
        """As a mouse does it: an element that is covered cannot be clicked."""
        self._call("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css: str, text: str) -> None:
        """Keys, one after another."""
        self._call("POST", f"/element/{self.find(css)}/value", {"text": text})

    def text(self, css: str) -> str:
        """What can be read there; empty where there is nothing."""
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def count(self, css: str) -> int:
        """So many elements."""
        return int(self.js("return document.querySelectorAll(arguments[0]).length", css))

    def accept(self) -> None:
        """Say yes to what the page asks."""
        self._call("POST", "/alert/accept", {})

    def screenshot(self, path: Path, full: bool = False) -> None:
        """A picture of what is shown, or of the whole page."""
        if full:
            height = int(self.js("return document.documentElement.scrollHeight"))
            width = int(self.js("return window.innerWidth"))
            self.resize(width, height)
            time.sleep(0.6)
        path.write_bytes(packed(base64.b64decode(self._call("GET", "/screenshot"))))

    def wait(self, condition: Callable[[], Any], what: str, limit_s: float = 30.0) -> Any:
        """Until it holds; the time that it took is nobody's business but the limit's."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if value := condition():
                return value
            time.sleep(0.05)
        raise AssertionError(f"{what}: not within {limit_s:g} s; the page says: {self.text('body')[:2000]}")


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """A driver and a browser, both ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    profile = tempfile.mkdtemp(prefix="paceline-browser-")
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--log-level=OFF"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    session = ""
    try:
        _await(base, driver)
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
        if path := shutil.which("chromium"):
            options["binary"] = path  # type: ignore[assignment]
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        session = _ask(f"{base}/session", "POST", wanted)["sessionId"]
        yield Browser(base, session)
    finally:
        with contextlib.suppress(BrowserError, OSError):
            if session:
                _ask(f"{base}/session/{session}", "DELETE", None)
        driver.terminate()
        try:
            driver.wait(10)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait(10)
        shutil.rmtree(profile, ignore_errors=True)


def _await(base: str, driver: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60.0
    while time.monotonic() < until and driver.poll() is None:
        with contextlib.suppress(OSError, BrowserError):
            if _ask(f"{base}/status", "GET", None)["ready"]:
                return
        time.sleep(0.05)
    raise BrowserError("chromedriver does not answer")


def _ask(url: str, method: str, body: dict[str, Any] | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise BrowserError(json.loads(error.read())["value"]["message"]) from None
