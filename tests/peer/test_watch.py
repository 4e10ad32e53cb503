"""`tutti watch --http` from outside: prometheus_client reads /metrics, a headless Chromium shows the page.

    test_watch.py TUTTI [PICTURES]

Run by ctest (label peer). The tests of the page are skipped where there is no Chromium. PICTURES: a folder for what
the browser shows.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from browser import Browser, find
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

TUTTI = PICTURES = None
OPEN = {"Accept": "application/openmetrics-text; version=1.0.0"}


class Watched(unittest.TestCase):
    """A run of two ranks that goes on for minutes, and a watch on it."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)
        (self.folder / "text.txt").write_text("In the beginning was the word. " * 2000)
        (self.folder / "c.toml").write_text(
            '[model]\nlayers = 2\nwidth = 64\nheads = 4\nkv_heads = 4\nhead_dim = 16\nffn = 128\n'
            f'[data]\ntrain = "{self.folder / "text.txt"}"\nvalid_fraction = 0.1\n'
            "[train]\nsteps = 100000\nseq_len = 64\nglobal_batch = 4\nmicro_batch = 2\neval_every = 50\n"
            "eval_batches = 1\nthreads = 1\n[checkpoint]\nevery = 20\n[log]\nevery = 1\n")
        self.out = self.folder / "run"
        self.launch("launch", "-n", "2", self.folder / "c.toml", "--out", self.out)
        self.until(lambda: (self.out / "metrics.jsonl").exists())

    def launch(self, *words):
        process = subprocess.Popen([TUTTI, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        def end():
            process.send_signal(signal.SIGTERM)
            process.communicate()
        self.addCleanup(end)
        return process

    def watch(self, *words):
        first = self.launch("watch", *words).stdout.readline()
        return re.search(r"http://\S+", first).group()

    def until(self, holds):
        until = time.monotonic() + 120
        while not holds():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)

    def rank(self, rank):
        """The process of a rank."""
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (f"TUTTI_RANK={rank}\0".encode() in (path / "environ").read_bytes()
                        and str(self.out).encode() in (path / "cmdline").read_bytes()):
                    return int(path.name)
            except OSError:
                pass
        self.fail(f"no rank {rank}")

    @staticmethod
    def get(url, **headers):
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.read().decode(), answer.headers


class Metrics(Watched):
    def values(self, families):
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}

    def test_prometheus_reads_both_formats(self):
        url = self.watch(self.out, "--http") + "metrics"
        key = ("tutti_training_step", (("run", str(self.out)),))
        seen = 0
        for _ in range(3):  # while the run goes on
            text, headers = self.get(url, **OPEN)
            self.assertIn("application/openmetrics-text; version=1.0.0", headers["Content-Type"])
            new = self.values(openmetrics_parser.text_string_to_metric_families(text))
            text, headers = self.get(url)
            self.assertIn("version=0.0.4", headers["Content-Type"])
            old = self.values(text_parser.text_string_to_metric_families(text))
            self.assertEqual(set(new), set(old))
            self.assertGreater(len(new), 40)
            self.assertGreaterEqual(new[key], seen)
            seen = new[key]
            self.until(lambda: self.values(
                openmetrics_parser.text_string_to_metric_families(self.get(url, **OPEN)[0]))[key] > seen)

    def test_another_address_needs_the_token(self):
        url = self.watch(self.out, "--listen", "0.0.0.0:0")
        port, token = re.search(r":(\d+)/\?token=([0-9a-f]{32})$", url).groups()
        base = f"http://127.0.0.1:{port}/"
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.get(base + "metrics")
        self.assertEqual(refused.exception.code, 403)
        self.assertIn("tutti_run_info", self.get(base + "metrics", Authorization=f"Bearer {token}")[0])
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # follows to / with the cookie
        self.assertIn("Tutti watch", opener.open(f"{base}?token={token}").read().decode())


@unittest.skipUnless(find(), "no Chromium here")
class Page(Watched):
    CURVE = "document.querySelector('#card-loss svg[role=img] path').getAttribute('d')"  # not that of the legend

    def check(self, page, url):
        self.assertEqual(page.problems, [])
        self.assertEqual([asked for asked in page.requests if not asked.startswith((url, "data:"))], [])
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), page.value("innerWidth"))

    def test_the_page_follows_the_run(self):
        url = self.watch(self.out, "--http")
        self.until(lambda: len((self.out / "metrics.jsonl").read_text().splitlines()) > 5)
        with Browser() as browser:
            for scheme, width in (("light", 1200), ("dark", 1200), ("dark", 420), ("light", 420)):
                page = browser.page()
                page.open(url, width, 900, scheme)
                page.wait_for("document.getElementById('live').textContent === 'live'")
                page.value("window.loaded = 1")  # a reload would forget it
                curve = page.value(self.CURVE)
                page.wait_for(f"{self.CURVE} !== {json.dumps(curve)}")
                self.assertEqual(page.value("window.loaded"), 1)
                dark = page.value("getComputedStyle(document.body).backgroundColor") != "rgb(246, 246, 243)"
                self.assertEqual(dark, scheme == "dark")
                if PICTURES:
                    page.picture(pathlib.Path(PICTURES, f"watch-{scheme}-{width}.png"))
                self.check(page, url)
                page.close()

    def test_what_a_reader_chooses(self):
        other = self.folder / "other"
        subprocess.run([TUTTI, "train", self.folder / "c.toml", "--out", other, "--set", "train.steps=30"], check=True,
                       capture_output=True)
        url = self.watch(self.out, other, "--http")
        with Browser() as browser:
            page = browser.page()
            page.open(url)
            page.wait_for("document.getElementById('live').textContent === 'live'")
            page.value("document.forms.view.x.value = 'tokens'; document.forms.view.dispatchEvent(new Event('change'))")
            page.wait_for("document.querySelector('#card-loss').textContent.includes('tokens')")
            page.value("document.querySelectorAll('[name=runs]')[1].click()")
            page.wait_for("document.querySelector('#card-results') && document.querySelector('#card-status-1')")
            self.assertIn("runs=0&runs=1", page.value("location.search"))
            self.assertIn("ended", page.value("document.querySelector('#card-status-1').textContent"))
            if PICTURES:
                page.picture(pathlib.Path(PICTURES, "watch-two-runs.png"))
            page.value("document.querySelectorAll('[name=runs]')[1].click()")
            page.wait_for("!document.querySelector('#card-results')")
            self.check(page, url)

    def test_a_killed_rank_is_shown(self):
        url = self.watch(self.out, "--http")
        with Browser() as browser:
            page = browser.page()
            page.open(url)
            page.wait_for("document.getElementById('live').textContent === 'live'")
            killed = time.monotonic()
            os.kill(self.rank(1), signal.SIGKILL)
            page.wait_for("document.querySelector('#card-status-0').textContent.includes('killed by signal 9')")
            print(f"a killed rank is shown after {time.monotonic() - killed:.2f} s")
            page.wait_for("document.querySelector('#card-status-0').textContent.includes('Generation 2, started')")
            page.wait_for("document.querySelector('#card-spent').textContent.includes('1 death')")
            if PICTURES:
                page.picture(pathlib.Path(PICTURES, "watch-killed.png"))
            self.check(page, url)

    def test_more_tabs_than_a_browser_has_connections(self):
        url = self.watch(self.out, "--http")
        with Browser() as browser:
            pages = [browser.page() for _ in range(9)]
            for page in pages:  # the newest one is in front
                page.call("Page.navigate", url=url)
                page.wait_for("document.readyState === 'complete' && document.getElementById('live')")
            for page in pages[-1], pages[0], pages[4]:
                page.call("Page.bringToFront")
                page.wait_for("document.getElementById('live').textContent === 'live'")
                curve = page.value(self.CURVE)
                page.wait_for(f"{self.CURVE} !== {json.dumps(curve)}")

    def test_the_end_of_the_watch_is_said(self):
        process = self.launch("watch", self.out, "--http")
        url = re.search(r"http://\S+", process.stdout.readline()).group()
        with Browser() as browser:
            page = browser.page()
            page.open(url)
            page.wait_for("document.getElementById('live').textContent === 'live'")
            process.send_signal(signal.SIGINT)
            page.wait_for("document.getElementById('live').textContent.includes('has ended')")
            self.check(page, url)


if __name__ == "__main__":
    TUTTI = sys.argv.pop(1)
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        PICTURES = sys.argv.pop(1)
    unittest.main()
