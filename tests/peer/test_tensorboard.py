"""Event files of a run, read by the tensorboard package: every number of metrics.jsonl, each step once.

    test_tensorboard.py TUTTI

Run by ctest (label peer). The run is killed after a step that its checkpoint does not have, and resumed, so the second
session logs steps again that the first one logged too.
"""

import json
import math
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from tensorboard.backend.event_processing import event_accumulator, event_file_loader

TUTTI = None
TAGS = {"loss": "train/loss", "grad_norm": "train/grad_norm", "lr": "train/learning_rate", "tokens": "train/tokens",
        "skipped": "train/skipped", "eval_loss": "eval/loss", "step_ms": "perf/step_ms", "mfu": "perf/mfu",
        "hfu": "perf/hfu", "tokens_per_s": "perf/tokens_per_s", "mem_peak_bytes": "perf/mem_peak_bytes",
        "comm_bytes": "perf/comm_bytes", "bubble": "perf/bubble"}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", math.nan if x is None else x))[0]


class Run(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        (self.folder / "text.txt").write_text("In the beginning. " * 2000)
        self.out = self.folder / "run"
        self.command = [TUTTI, "train", self.folder / "c.toml", "--out", self.out]
        (self.folder / "c.toml").write_text(
            f'[model]\nlayers = 1\n[data]\ntrain = "{self.folder / "text.txt"}"\nvalid_fraction = 0.1\n'
            "[train]\nsteps = 30\nseq_len = 32\nglobal_batch = 2\nmicro_batch = 1\neval_every = 6\nthreads = 1\n"
            "[checkpoint]\nevery = 8\nasync = false\n[log]\nevery = 1\ntensorboard = true\n")

    def tearDown(self):
        self._folder.cleanup()

    def lines(self):
        path = self.out / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def files(self):
        return sorted((self.out / "tensorboard").iterdir())

    def check(self):
        """What tensorboard shows of the run is metrics.jsonl."""
        log = event_accumulator.EventAccumulator(str(self.out / "tensorboard"), {"scalars": 0})
        log.Reload()
        lines = self.lines()
        self.assertEqual(sorted(log.Tags()["scalars"]), sorted({t for k, t in TAGS.items() if any(k in l for l in lines)}))
        for key, tag in TAGS.items():
            got = [(e.step, f32(e.value)) for e in log.Scalars(tag)]
            self.assertEqual(got, [(l["step"], f32(l[key])) for l in lines if key in l], tag)
        walls = [e.wall_time for e in log.Scalars("train/loss")]
        self.assertEqual(walls, sorted(walls))
        self.assertLess(abs(walls[-1] - time.time()), 600)

    def test_a_run_in_one_session(self):
        subprocess.run(self.command, check=True, capture_output=True)
        self.assertEqual(len(self.files()), 1)
        self.check()

    def test_a_run_that_was_killed_and_resumed(self):
        process = subprocess.Popen([*self.command, "--set", "train.steps=100000"], stdout=subprocess.DEVNULL)
        while len(self.lines()) < 12:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        last = self.lines()[-1]["step"]
        target = last + 20
        subprocess.run([*self.command, "--set", f"train.steps={target}"], check=True, capture_output=True)
        first, second = self.files()
        replayed = {e.step for e in event_file_loader.LegacyEventFileLoader(str(second)).Load() if e.HasField("summary")}
        self.assertEqual(min(replayed) % 8, 1)  # after a checkpoint
        self.assertTrue(1 < min(replayed) <= last + 1)
        self.assertEqual([l["step"] for l in self.lines()], list(range(1, target + 1)))
        self.check()


if __name__ == "__main__":
    TUTTI = sys.argv.pop(1)
    unittest.main()
