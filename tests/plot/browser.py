"""A page in Chromium, where it is installed: driven through a pipe, by its DevTools protocol."""

import json
import os
import shutil
import subprocess
import tempfile
import time

import pytest


FOUND = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(FOUND is None, reason="there is no Chromium on this machine: install chromium")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


class Browser:
    """A window with one page."""

    def __init__(self, path, width=1280, height=800, dark=False):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self.to = os.pipe()
        self.back, ours = os.pipe()
        command = [FOUND, *OPTIONS, f"--user-data-dir={self.folder.name}", f"--window-size={width},{height}"]
        script = f'exec "$@" 3<&{theirs} 4>&{ours}'
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(["bash", "-c", script, "bash", *command], pass_fds=(theirs, ours), **silent)
        os.close(theirs)
        os.close(ours)
        self.count, self.rest, self.errors = 0, b"", []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Runtime.enable")
        self.ask("Page.enable")
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=media)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Page.navigate", url=path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()

    def ask(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                read = os.read(self.back, 1 << 16)
                assert read, "Chromium ended"
                self.rest += read
            one, _, self.rest = self.rest.partition(b"\0")
            said = json.loads(one)
            if said.get("method") == "Runtime.exceptionThrown":
                self.errors.append(said["params"]["exceptionDetails"]["exception"].get("description"))
            if said.get("id") == self.count:
                assert "error" not in said, said
                return said["result"]

    def __call__(self, code):
        """The value of an expression in the page."""
        done = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, code, seconds=20.0):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self(code):
            assert time.monotonic() < end, f"waited in vain for {code}"
            time.sleep(0.02)

    def mouse(self, kind, x, y):
        pressed = {"button": "left", "buttons": 0 if kind == "mouseReleased" else 1, "clickCount": 1}
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)
