"""python -m tutti.export RUN --to wandb|trackio|mlflow [--project P] [--name N] [--follow]

Sends the logged steps of a run directory to a tracker, whose package must be installed. --follow waits for further
steps until the run ends. Numbers only: every key of metrics.jsonl that is a number, nested ones as a.b; the config as
the tracker's parameters."""

import argparse
import sys
import time

from .calls import Error, UsageError
from .runs import Run, Tail


def numbers(document, prefix=""):
    """The numbers of nested dicts, by dotted name."""
    found = {}
    for key, value in document.items():
        if isinstance(value, dict):
            found.update(numbers(value, f"{prefix}{key}."))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[prefix + key] = value
    return found


def settings(config):
    """The keys of a resolved config.toml as text by dotted name, those of its second [[stage]] as stage.2.KEY; each stands
    on a line of its own."""
    section, found, tables = "", {}, {}
    for line in config.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            if line.startswith("[["):
                tables[section] = tables.get(section, 0) + 1
                section = f"{section}.{tables[section]}"
        elif " = " in line:
            key, value = line.split(" = ", 1)
            found[f"{section}.{key}"] = value
    return found


class Wandb:
    """wandb, and trackio, which has the same functions."""

    def __init__(self, module, project, name, config):
        self.module = module
        module.init(project=project, name=name, config=config)

    def log(self, values, step):
        self.module.log(values, step=step)

    def finish(self):
        self.module.finish()


class Mlflow:
    def __init__(self, module, project, name, config):
        self.module = module
        module.set_experiment(project)
        module.start_run(run_name=name)
        for key, value in config.items():
            module.log_param(key, value)

    def log(self, values, step):
        self.module.log_metrics(values, step=step)

    def finish(self):
        self.module.end_run()


def tracker(to, project, name, config):
    try:
        module = __import__(to)
    except ImportError as missing:
        raise UsageError(f"--to {to} needs the package {to}: pip install {to}", 2) from missing
    return (Mlflow if to == "mlflow" else Wandb)(module, project, name, config)


def export(run, to, project="tutti", name=None, follow=False, pause=1.0):
    """Sends the steps of `run` (a Run or a directory). Returns how many."""
    run = run if isinstance(run, Run) else Run(run)
    target = tracker(to, project, name or run.path.rstrip("/").rsplit("/", 1)[-1], settings(run.config()))
    tail, count = Tail(run), 0
    try:
        while True:
            ended = not follow or run.ended()  # asked before the last steps are read
            for step in tail.new():
                values = numbers(step)
                target.log(values, int(values.pop("step")))
                count += 1
            if ended:
                return count
            time.sleep(pause)
    finally:
        target.finish()


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m tutti.export", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument("--to", required=True, choices=["wandb", "trackio", "mlflow"])
    parser.add_argument("--project", default="tutti")
    parser.add_argument("--name", help="name of the run there [that of the directory]")
    parser.add_argument("--follow", action="store_true", help="wait for further steps until the run ends")
    arguments = parser.parse_args(words)
    try:
        count = export(arguments.run, arguments.to, arguments.project, arguments.name, arguments.follow)
    except Error as error:
        print(f"tutti.export: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
    print(f"{count} steps of {arguments.run} to {arguments.to}", file=sys.stderr)


if __name__ == "__main__":
    main()
