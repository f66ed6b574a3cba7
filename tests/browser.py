"""A headless Chromium, driven over plain HTTP by its own driver [W3C WebDriver]; no package is needed for it."""

import base64
import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "no Chromium and chromedriver here (Debian: apt install chromium chromium-driver)"
# It asks nobody for anything but the page.
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,900",
)


class Browser:
    """One page."""

    def __init__(self, driver: str, folder: Path) -> None:
        self.url = driver
        # where Chromium has no sandbox: a container that runs as root
        flags = [*FLAGS, f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        options = {
            "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self.url += f"/session/{answer['sessionId']}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from None

    def open(self, url: str) -> None:
        self.ask("POST", "/url", {"url": url})

    def js(self, code: str, *arguments: Any) -> Any:
        return self.ask("POST", "/execute/sync", {"script": code, "args": arguments})

    def cdp(self, command: str, **parameters: Any) -> None:
        self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector: str) -> str:
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        return str(next(iter(found.values())))

    def click(self, selector: str) -> None:
        """Press what can really be pressed: an element that is covered or hidden is an error."""
        self.ask("POST", f"/element/{self.find(selector)}/click")

    def set(self, selector: str, value: Any) -> None:
        """Give a slider or a list a value, as a hand would."""
        self.js(
            "const e = document.querySelector(arguments[0]); e.value = arguments[1]; "
            "for (const n of ['input', 'change']) e.dispatchEvent(new Event(n, {bubbles: true}))",
            selector,
            value,
        )

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0]).textContent", selector))

    def count(self, selector: str) -> int:
        return int(self.js("return document.querySelectorAll(arguments[0]).length", selector))

    def upload(self, selector: str, *paths: Path) -> None:
        self.ask("POST", f"/element/{self.find(selector)}/value", {"text": "\n".join(map(str, paths))})

    def stroke(self, selector: str, points: Sequence[tuple[float, float]]) -> None:
        """Draw on an element with the mouse, through points on [0, 1]²."""
        origin = {"element-6066-11e4-a52e-4f735466cecf": self.find(selector)}
        wide, tall = self.js(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'}); "
            "const b = e.getBoundingClientRect(); return [b.width, b.height]",
            selector,
        )
        places = [{"x": round((x - 0.5) * wide), "y": round((y - 0.5) * tall)} for x, y in points]
        first, *rest = ({"type": "pointerMove", "duration": 10, "origin": origin, **at} for at in places)
        actions = [first, {"type": "pointerDown", "button": 0}, *rest, {"type": "pointerUp", "button": 0}]
        self.ask("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def wait(self, condition: str) -> None:
        """Until a condition holds; what the page says is in the error."""
        end = time.monotonic() + 60
        while not self.js(f"return {condition}"):
            if time.monotonic() > end:
                raise AssertionError(f"never came: {condition}; page: {self.text('#message')!r} {self.log()}")
            time.sleep(0.05)

    def idle(self) -> None:
        """Until no button works any more."""
        self.wait("!document.body.dataset.busy && document.body.dataset.ready")

    def press(self, selector: str) -> None:
        """Press a button and wait for what it does."""
        self.click(selector)
        self.idle()

    def log(self) -> list[str]:
        """The errors since it was asked last: of the page, and of what it may not or cannot load.

        A browser asks for favicon.ico where a file other than the page is opened.
        """
        entries = self.ask("POST", "/se/log", {"type": "browser"})
        said = [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
        return [message for message in said if "favicon.ico" not in message]

    def picture(self, selector: str = "body") -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A screenshot of the window, or of one element: (height, width, 3)."""
        path = "/screenshot" if selector == "body" else f"/element/{self.find(selector)}/screenshot"
        data = base64.b64decode(self.ask("GET", path))
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    def size(self, width: int, height: int, phone: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)

    def dark(self, on: bool) -> None:
        value = "dark" if on else "light"
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser, until the end of the block."""
    assert DRIVER is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [DRIVER, f"--port={port}", "--allowed-ips=127.0.0.1"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    browser = None
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/status", timeout=5):
                break
            time.sleep(0.05)
        browser = Browser(url, folder)
        yield browser
    finally:
        if browser is not None:
            with contextlib.suppress(Exception):
                browser.ask("DELETE", "")
        driver.terminate()
        driver.wait(10)
