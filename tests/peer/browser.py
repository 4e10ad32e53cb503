"""A headless Chromium, driven over its DevTools protocol by the standard library alone."""

import base64
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request


def find():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class WebSocket:
    """Text frames of one connection (RFC 6455)."""

    def __init__(self, url):
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.split(":")
        self.socket = socket.create_connection((name, int(port)), 30)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.waiting = b""
        while b"\r\n\r\n" not in self.waiting:
            self.waiting += self.socket.recv(4096)
        head, self.waiting = self.waiting.split(b"\r\n\r\n", 1)
        assert b" 101 " in head, head

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = (bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack(">H", len(data))
                if len(data) < 65536 else bytes([0x80 | 127]) + struct.pack(">Q", len(data)))
        self.socket.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def bytes(self, count):
        while len(self.waiting) < count:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the browser has closed the connection")
            self.waiting += piece
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def receive(self):
        text = b""
        while True:
            first, size = self.bytes(2)
            if size == 126:
                size = struct.unpack(">H", self.bytes(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.bytes(8))[0]
            text += self.bytes(size)
            if first & 0x80:
                return text.decode()


class Page:
    """One tab. `problems`: what its console and log said; `requests`: the URLs that it asked for."""

    def __init__(self, url):
        self.socket, self.number, self.problems, self.requests = WebSocket(url), 0, [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.see(message)

    def see(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(parameters["args"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"])

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression, seconds=60):
        """Until the expression is true."""
        until = time.monotonic() + seconds
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < until, f"{expression} is not true: {self.value('document.body.innerText')[:2000]}"
            time.sleep(0.1)

    def open(self, url, width=1200, height=900, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def close(self):
        self.socket.socket.close()

    def picture(self, path):
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


class Browser:
    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="tutti-browser-")
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
             f"--user-data-dir={self.folder}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        file, until = pathlib.Path(self.folder, "DevToolsActivePort"), time.monotonic() + 60
        while not (file.exists() and file.read_text().count("\n")):
            assert self.process.poll() is None and time.monotonic() < until, "Chromium does not start"
            time.sleep(0.05)
        self.port, self.pages = int(file.read_text().split()[0]), []
        return self

    def __exit__(self, *_):
        for page in self.pages:
            page.close()
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def page(self):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request) as answer:
            self.pages.append(Page(json.load(answer)["webSocketDebuggerUrl"]))
        return self.pages[-1]
