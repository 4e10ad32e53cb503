"""Run directories, and training with a callback."""

import html
import json
import os
import pathlib
import subprocess
import tempfile

from .calls import DataError, Result, call, document_of, ended

PREEMPTED = 75


class Tail:
    """The lines of metrics.jsonl that were not there before: a resumed run writes the file anew, without the steps
    after its checkpoint."""

    def __init__(self, run):
        self.path = pathlib.Path(os.fsdecode(run)) / "metrics.jsonl"
        self.file, self.begin, self.seen = None, 0, set()

    def new(self):
        """Yields the new steps as dicts. A line that is not complete yet is left."""
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != self.file or status.st_size < self.begin:
                self.file, self.begin = (status.st_dev, status.st_ino), 0
            file.seek(self.begin)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.begin += len(line)
                step = document_of(line)
                if step and line not in self.seen:
                    self.seen.add(line)
                    yield step


class Run:
    """A run directory, finished or not."""

    def __init__(self, path, outcome=None):
        self.path = os.fsdecode(path)
        self.outcome = outcome or {}  # the JSON document of `tutti train`

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"tutti.Run({self.path!r})"

    def metrics(self):
        """The logged steps as dicts."""
        return list(Tail(self.directory()).new())

    def directory(self):
        """The path of the directory. Raises DataError where there is none."""
        if not os.path.isdir(self.path):
            raise DataError(f"{self.path}: required: the directory of a run, as `tutti train --out DIR` makes it; it does not exist", 3)
        return pathlib.Path(self.path)

    def totals(self):
        """run.json, or {} before the run has ended."""
        path = self.directory() / "run.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def ended(self):
        """Whether run.json is newer than the last step: a run that goes on has written a step since."""
        times = [(pathlib.Path(self.path) / name).stat().st_mtime_ns if (pathlib.Path(self.path) / name).exists() else 0
                 for name in ("run.json", "metrics.jsonl")]
        return times[0] > 0 and times[0] >= times[1]

    def config(self):
        """config.toml as the run resolved it, as text."""
        path = self.directory() / "config.toml"
        if not path.exists():
            raise DataError(f"{path}: required: the file that each run writes at its start; it does not exist", 3)
        return path.read_text(encoding="utf-8")

    def frame(self):
        """The logged steps as a pandas.DataFrame with the step as its index; nested values become a.b columns."""
        try:
            import pandas
        except ImportError as missing:
            raise ImportError("Run.frame() needs pandas; Run.metrics() gives the same as a list") from missing
        table = pandas.json_normalize(self.metrics())
        return table.set_index("step") if "step" in table else table

    def report(self):
        """The HTML page of `tutti report`."""
        with tempfile.TemporaryDirectory(prefix="tutti-") as folder:
            path = os.path.join(folder, "report.html")
            return call("report", self.path, picture=path, out=path).picture

    def _repr_html_(self):
        page = html.escape(self.report(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'


def train(config=None, out=None, on_step=None, **options):
    """Trains and returns the Run. The same call continues a stopped run.

    out: the run directory; required with on_step. on_step(step): called with each logged step, a dict as in
    metrics.jsonl; where it returns False (also numpy's), the run saves a checkpoint and stops (run.outcome["preempted"]
    is true then). An exception of on_step, and KeyboardInterrupt, stops the run in the same way and is raised again.
    With dry_run=True there is no run; the document is returned, as of the other commands. Raises Error."""
    if on_step is not None and out is None:
        raise TypeError("tutti.train(on_step=...) needs out=, the run directory whose steps it reports")
    tail = Tail(out) if on_step is not None else None
    if tail:
        for _ in tail.new():  # steps of an earlier start
            pass

    def report_steps(process):
        stopped = False
        while tail:
            over = process.poll() is not None  # asked before the last steps are read
            for step in tail.new():
                answer = None if stopped else on_step(step)
                if answer is not None and not answer:
                    stopped = True
                    process.terminate()
            if over:
                return
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                pass

    arguments = ["train"] if config is None else ["train", config]
    outcome, said = ended(arguments, {"out": out, **options}, good=(0, PREEMPTED), beside=report_steps)
    return Run(outcome["out"], outcome) if "out" in outcome else Result(outcome, said)
