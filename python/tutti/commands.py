"""The commands that answer a question."""

import os
import tempfile

from .calls import call


def drawn(command, arguments, option, options):
    """Runs a command that draws a picture into the file of `option`."""
    with tempfile.TemporaryDirectory(prefix="tutti-") as folder:
        path = options.pop(option, None) or os.path.join(folder, "picture")
        result = call(command, *arguments, picture=path, **{option: path}, **options)
        result.text = "".join(line for line in result.text.splitlines(True) if line.strip() != f"wrote {path}")
        return result


def given(config):
    return [] if config is None else [config]


def plan(config=None, **options):
    """The fastest layouts of a model on a cluster: `tutti plan`. The picture is the page of --html."""
    if any(options.get(name) for name in ("tables", "budget", "scaling")):
        return call("plan", *given(config), **options)
    return drawn("plan", given(config), "html", options)


def rehearse(config=None, **options):
    """What a step holds, sends and computes: `tutti rehearse`. The picture is that of --svg."""
    return drawn("rehearse", given(config), "svg", options)


def simulate(config=None, **options):
    """Time, rates and memory of a step on a cluster: `tutti simulate`. The picture is the predicted timeline."""
    if any(options.get(name) for name in ("vary", "table")):
        return call("simulate", *given(config), **options)
    return drawn("simulate", given(config), "svg", options)


def schedule(kind, **options):
    """A pipeline schedule: `tutti schedule`. The picture is its timeline."""
    if kind == "all":
        return call("schedule", kind=kind, **options)
    return drawn("schedule", [], "svg", {"kind": kind, **options})


def verify(config=None, **options):
    """Is a layout the same run as one rank? `tutti verify`; result["within_bound"] is the answer."""
    return call("verify", *given(config), good=(0, 1), **options)


def inspect(target=None, **options):
    """A checkpoint's tensors, or with precision=True the numbers of a run or a config under every format:
    `tutti inspect`. The picture shows their binary exponents."""
    arguments = [target] if target is not None else []
    return drawn("inspect", arguments, "svg", options) if options.get("precision") else call("inspect", *arguments, **options)


def models(**options):
    """The families and presets: `tutti models`."""
    return call("models", **options)


def generate(model, prompt=None, **options):
    """Continues texts: `tutti generate`. model: a Run or a directory; prompt: a text or a list of texts."""
    return call("generate", model, prompt=prompt, **options)


def convert(source, to, **options):
    """Weights to or from a Hugging Face directory: `tutti convert`."""
    return call("convert", **{"from": source, "to": to}, **options)
