"""A headless Chromium over its debugging pipe: just enough to open a page, press a button and look."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_MOVE_PIPES = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads its pipe at descriptor 3 and writes at 4."""
_LOADED = """
location.href.startsWith('file:') && document.readyState === 'complete'
&& (!document.querySelector('#gantt') || document.querySelector('#gantt').dataset.ready === '1')
"""


class Chromium:
    """One page. ``events`` holds everything the browser reported; messages are JSON ended by a zero byte."""

    def __init__(
        self, profile: Path, *, width: int = 1280, height: int = 900, dark: bool = False, touch: bool = False
    ) -> None:
        assert PROGRAM is not None
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        command = [
            sys.executable, "-c", _MOVE_PIPES, str(to_read), str(from_write), PROGRAM, "--headless", "--no-sandbox",
            "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ]
        self.process = subprocess.Popen(
            command, pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self.write, self.read = to_write, from_read
        self.rest, self.count, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if touch:
            self.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.write)
        os.close(self.read)
        self.process.terminate()
        self.process.wait(20)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        for _ in range(600):
            if self.evaluate(_LOADED):
                return
            time.sleep(0.05)
        raise TimeoutError("the page did not load")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true: what the page draws, it draws with the next frame."""
        for _ in range(200):
            if self.evaluate(condition):
                return
            time.sleep(0.02)
        raise TimeoutError(f"never true: {condition}")

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.drag((x, y), (x, y))

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the left button at one point and release it at another."""
        left: dict[str, Any] = {"button": "left", "buttons": 1, "clickCount": 1}
        self.hover(*start)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=start[0], y=start[1], **left)
        if end != start:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1], button="left", buttons=1)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **left)

    def wheel(self, x: float, y: float, delta_y: float, *, ctrl: bool = False) -> None:
        self.call(
            "Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta_y, modifiers=2 * ctrl,
        )

    def touch(self, *moments: Sequence[tuple[float, float]]) -> None:
        """Put as many fingers down as the first moment has points, move them along, lift them."""
        for at, points in enumerate(moments):
            fingers = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(points)]
            self.call("Input.dispatchTouchEvent", type="touchMove" if at else "touchStart", touchPoints=fingers)
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str, text: str = "") -> None:
        """Press a key by its name in the DOM; ``text`` is what it types."""
        typed = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def middle(self, selector: str) -> tuple[float, float]:
        """Centre of an element, scrolled into view."""
        x, y = self.evaluate(
            "(n => { n.scrollIntoView({block: 'center', inline: 'nearest'}); const r = n.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        return float(x), float(y)

    def screenshot(self, path: Path) -> None:
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))

    def complaints(self) -> list[str]:
        """Uncaught exceptions, console errors and warnings, security violations."""
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in bad]

    def requests(self) -> list[str]:
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            chunk = os.read(self.read, 1 << 16)
            if not chunk:
                raise ConnectionError("Chromium went away")
            self.rest += chunk
        message, self.rest = self.rest.split(b"\0", 1)
        return dict(json.loads(message))
