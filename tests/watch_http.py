"""`tutti watch --http` on an ended run and on one that grows, by Python's standard library alone.

    watch_http.py TUTTI
"""

import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

TUTTI = None


class WatchHttp(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.run = pathlib.Path(self._folder.name, "run")
        self.run.mkdir()
        self.log = self.run / "metrics.jsonl"
        self.add(1, 40)
        self.watch = subprocess.Popen([TUTTI, "watch", self.run, "--http", "--json"], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end)
        first = self.watch.stderr.readline()  # with --json text goes there
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)/$", first.strip()).group(1))

    def end(self):
        self.watch.kill()
        self.watch.communicate()

    def add(self, first, count):
        with open(self.log, "a") as file:
            for step in range(first, first + count):
                file.write(json.dumps({"step": step, "loss": 5 - step / 100, "step_ms": 10.0}) + "\n")

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers)
        return connection.getresponse()

    def events(self, path):
        """The stream, one event after the other: (id, data)."""
        answer = self.ask(path)
        self.assertEqual(answer.headers["Content-Type"], "text/event-stream; charset=utf-8")
        event = {}
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                event[name] = value
            elif "data" in event:
                yield event.get("id"), event.get("event"), json.loads(event["data"])
                event = {}

    def test_the_answers(self):
        page = self.ask("/").read().decode()
        self.assertIn("step 40", page)
        self.assertEqual(self.ask("/", "HEAD").read(), b"")
        for path, kind in (("/live.css", "text/css"), ("/live.js", "text/javascript"), ("/metrics", "text/plain")):
            answer = self.ask(path)
            self.assertEqual((answer.status, answer.headers["Content-Type"].split(";")[0]), (200, kind))
            self.assertIn("default-src 'none'", answer.headers["Content-Security-Policy"])
        self.assertIn("openmetrics", self.ask("/metrics", Accept="application/openmetrics-text").headers["Content-Type"])
        for path, status in (("/metrics.jsonl", 404), ("/../run.json", 404), ("//etc/passwd", 404), ("/?runs=1", 400),
                             ("/events?x=y", 400)):
            self.assertEqual(self.ask(path).status, status, path)
        self.assertEqual(self.ask("/", "POST").status, 405)
        self.assertEqual(self.ask("/", Host="example.com").status, 421)

    def test_the_stream(self):
        stream = self.events("/events")
        first, kind, change = next(stream)
        self.assertEqual(kind, "cards")
        self.assertIn("step 40", change["cards"]["status-0"])
        self.add(41, 1)
        last, _, change = next(stream)
        self.assertIn("step 41", change["cards"]["status-0"])
        self.assertNotIn("skipped", change["cards"])
        self.assertNotEqual(first, last)
        # A reader that has all cards gets the next ones alone, also with the header that browsers send by themselves.
        again = self.events(f"/events?have={last}")
        self.add(42, 1)
        self.assertNotIn("skipped", next(again)[2]["cards"])
        next(stream)
        self.watch.send_signal(signal.SIGTERM)
        self.assertEqual(next(stream)[1], "end")
        out, _ = self.watch.communicate()
        self.assertEqual(self.watch.returncode, 0)
        self.assertEqual(json.loads(out)["runs"][0]["step"], 42)
        self.assertEqual(json.loads(out)["url"], f"http://127.0.0.1:{self.port}/")


if __name__ == "__main__":
    TUTTI = sys.argv.pop(1)
    unittest.main()
