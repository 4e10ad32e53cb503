"""The program, its command line, and the result of a command."""

import html
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig


class Error(Exception):
    """A command failed. `exit_code` is that of the program; str(error) is its message."""

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(Error):
    """Exit code 2: an option or a key of the config."""


class DataError(Error):
    """Exit code 3: data or a checkpoint."""


class RunError(Error):
    """Exit code 4, 5, 70: the run failed."""


def error_of(message, exit_code):
    kinds = {2: UsageError, 3: DataError, 4: RunError, 5: RunError, 70: RunError}
    return kinds.get(exit_code, Error)(message, exit_code)


class Result(dict):
    """The JSON document of a command. `text`: what the command prints for people. `picture`: SVG or HTML, or None."""

    def __init__(self, document, text="", picture=None):
        super().__init__(document)
        self.text, self.picture = text, picture

    def __str__(self):
        return self.text

    def _repr_html_(self):
        text = f"<pre>{html.escape(self.text)}</pre>"
        if self.picture is None:
            return text
        if self.picture.lstrip().startswith("<svg"):
            return self.picture + text
        page = html.escape(self.picture, quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>{text}'


def program():
    """The path of the program: TUTTI_PROGRAM, that of this environment, or the first on PATH."""
    named = os.environ.get("TUTTI_PROGRAM")
    beside = [pathlib.Path(sysconfig.get_path("scripts")) / "tutti", pathlib.Path(sys.executable).parent / "tutti"]
    for path in [named] if named else beside:
        if os.access(path, os.X_OK):
            return str(path)
    found = None if named else shutil.which("tutti")
    if not found:
        where = f"TUTTI_PROGRAM={named}" if named else f"{beside[0].parent} and PATH"
        raise UsageError(f"no program tutti: looked at {where}; install the wheel tutti-train or set TUTTI_PROGRAM", 2)
    return found


def toml(value):
    """A value of --set."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value)


def words(options):
    """Keywords as words of a command line."""
    result = []
    for name, value in options.items():
        option = "--" + name.strip("_").replace("_", "-")
        if name == "set" and isinstance(value, dict):
            value = [f"{key}={toml(x)}" for key, x in value.items()]
        if value is True:
            result.append(option)
        elif value is not None and value is not False:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                result += [option, os.fspath(one) if hasattr(one, "__fspath__") else str(one)]
    return result


def document_of(output):
    try:
        return json.loads(output)
    except ValueError:
        return {}


def call(command, *arguments, picture=None, good=(0,), **options):
    """Runs `tutti COMMAND ARGUMENTS --json OPTIONS` and returns its Result.

    command: such as "plan" or "data tokenize". picture: a file that an option makes the command write; its text becomes
    the picture of the result. good: exit codes that are answers (verify: 1 is "different"). Raises Error."""
    line = [program(), *command.split(), *(os.fspath(x) for x in arguments), "--json", *words(options)]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          encoding="utf-8", errors="replace", check=False)
    document = document_of(done.stdout)
    if done.returncode not in good:
        message = document.get("error") or done.stderr.strip() or f"tutti {command} ended with {done.returncode}"
        raise error_of(message, done.returncode)
    drawn = pathlib.Path(picture).read_text(encoding="utf-8") if picture and os.path.exists(picture) else None
    return Result(document, done.stderr, drawn)
