"""The pages that Tutti writes, in a real Chromium: light and dark, wide and 420 px, no console message, no request.

    test_pages.py TUTTI

Exit code 77: no Chromium on this machine (Debian's package: chromium).
"""

import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTHS = (1100, 420)
# What the browser asks for by itself; no page may name these hosts.
OWN = re.compile(r"(^|[/.])(google|googleapis|gvt1)\.com[:/]")
# What a page says of itself after it has run: told to the frame around it, which the test reads.
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const text = document.querySelector("svg text, p"), style = getComputedStyle(document.body);
  parent.postMessage(JSON.stringify({wide: document.documentElement.scrollWidth, inner: innerWidth,
    dark: matchMedia("(prefers-color-scheme:dark)").matches, paper: style.backgroundColor, ink: style.color,
    letters: text ? getComputedStyle(text)[text.closest("svg") ? "fill" : "color"] : "",
    pictures: document.querySelectorAll("svg").length, doing: document.body.dataset.doing || ""}), "*");
}, 50));</script>"""


class Requests(http.server.BaseHTTPRequestHandler):
    """A proxy that serves nothing and remembers what was asked for."""

    seen = []

    def do_GET(self):  # noqa: N802, the name of the base class
        Requests.seen.append(self.path)
        self.send_error(404)

    do_CONNECT = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


class Browser:
    def __init__(self, folder):
        self.folder, self.program = pathlib.Path(folder), shutil.which("chromium") or shutil.which("chromium-browser")
        if self.program is None:
            print("skipped: no chromium on this machine; Debian's package is called chromium")
            sys.exit(77)
        self.proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()

    def look(self, page, width, dark, at=""):
        """What the probe in `page` says, the console's messages, and the requests."""
        text = page.read_text(encoding="utf-8")
        shown = self.folder / "shown.html"
        shown.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
        frame = self.folder / "frame.html"
        frame.write_text(f'<body><iframe src="shown.html{at}" style="width:{width}px;height:900px;border:0"></iframe><pre id="said">'
                         '</pre><script>addEventListener("message", e => {document.getElementById("said").textContent = '
                         "e.data})</script></body>", encoding="utf-8")
        Requests.seen.clear()
        done = subprocess.run(
            [self.program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--no-first-run", "--enable-logging=stderr",
             f"--user-data-dir={self.folder}/profile", f"--proxy-server=127.0.0.1:{self.proxy.server_port}",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=1300,1000",
             "--virtual-time-budget=4000", "--allow-file-access-from-files", "--dump-dom", frame.as_uri()],
            capture_output=True, text=True, check=False, timeout=120)
        said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
        if not said or not said[1]:
            raise SystemExit(f"{page.name}: the page did not load: {done.stderr[-2000:]}")
        if OWN.search(text):
            raise SystemExit(f"{page.name} names a host of the browser's own requests")
        messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return json.loads(said[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")), messages, [r for r in Requests.seen if not OWN.search(r)]


def brightness(colour):
    red, green, blue = (int(float(part)) for part in re.findall(r"[\d.]+", colour)[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


def pages_of(tutti, folder):
    def run(*words):
        done = subprocess.run([tutti, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"tutti {' '.join(words)}: {done.stdout[-800:]}{done.stderr[-800:]}")

    config = "docs/lectures/tiny.toml"
    short = ["--set", "train.steps=4", "--set", "log.trace=true", "--set", "log.trace_steps=1"]
    for name, ranks in (("one", 1), ("two", 2)):
        run("train", config, "--out", f"{folder}/{name}", "--ranks", str(ranks), *short)
    run("report", f"{folder}/two", "--step", f"{folder}/measured.html")
    run("report", f"{folder}/one", f"{folder}/two", "--out", f"{folder}/comparison.html")
    run("rehearse", config, "--cluster", "h100", "--ranks", "8", "--set", "parallel.tp=2", "--set", "parallel.pp=2",
        "--set", "parallel.zero=1", "--html", f"{folder}/step.html", "--per-host", "4")
    run("plan", "--model", "llama3.2-1b", "--cluster", "h100", "--gpus", "16", "--global-batch", "64", "--seq-len", "2048",
        "--html", f"{folder}/plan.html")
    names = ("two/report", "measured", "comparison", "step", "plan")
    return {name: pathlib.Path(folder) / f"{name}.html" for name in names}


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(folder)
        faulty = pathlib.Path(folder) / "faulty.html"
        faulty.write_text('<html><body><p>x</p><div style="width:700px">wide</div><script>console.error("heard")</script>'
                          '<img src="http://elsewhere.test/a.png"></body></html>', encoding="utf-8")
        said, messages, requests = browser.look(faulty, 420, False)
        if not messages or not requests or said["wide"] <= said["inner"]:
            raise SystemExit(f"the test is blind: {said} {messages} {requests}")
        for name, page in pages_of(sys.argv[1], folder).items():
            for width in WIDTHS:
                for dark in (False, True):
                    said, messages, requests = browser.look(page, width, dark)
                    where = f"{name}, {width} px, {'dark' if dark else 'light'}"
                    checks = {
                        f"console: {messages}": not messages,
                        f"requests: {requests}": not requests,
                        f"wider than its window: {said}": said["inner"] == width and said["wide"] <= width,
                        f"colours: {said}": said["dark"] == dark and (brightness(said["paper"]) < 90) == dark
                        and all(abs(brightness(said["paper"]) - brightness(said[part])) > 90 for part in ("ink", "letters")),
                        "no picture": said["pictures"] > 0,
                    }
                    wrong += [f"{where}: {what}" for what, good in checks.items() if not good]
        steps = {at: browser.look(pathlib.Path(folder) / "step.html", 1100, False, at)[0]["doing"]
                 for at in ("#t=0.05", "#t=0.5", "#t=0.999,rank=3")}
        if len(set(steps.values())) < 3 or not all(steps.values()):
            wrong.append(f"the slider changes nothing: {steps}")
    print("\n".join(wrong) or f"every page, {len(WIDTHS)} widths, light and dark; the slider showed {steps}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
