"""The program, its command line, and the result of a command."""

import html
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading


class Error(Exception):
    """A command failed. `exit_code` is that of the program; str(error) is its message."""

    def __init__(self, message, exit_code):
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self):  # a pool of processes returns it to another one
        return type(self), (str(self), self.exit_code)


class UsageError(Error):
    """Exit code 2: an option or a key of the config."""


class DataError(Error):
    """Exit code 3: data or a checkpoint."""


class RunError(Error):
    """Exit code 4, 5, 70: the run failed."""


def error_of(command, exit_code, document, said):
    """The exception of a command that failed. document: its JSON document; said: its text for people."""
    kinds = {2: UsageError, 3: DataError, 4: RunError, 5: RunError, 70: RunError}
    message = document.get("error") or said.strip() or f"tutti {command} ended with {exit_code}"
    if exit_code < 0:  # a program that was killed has not said why
        last = "\n".join(said.strip().splitlines()[-5:])
        message = f"tutti {command} was ended by signal {-exit_code} ({signal.strsignal(-exit_code)}); it said last:\n{last}"
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


def plain(value):
    """A value that JSON lacks: a path, or a number or an array of numpy."""
    return value.tolist() if hasattr(value, "tolist") else os.fsdecode(value)


def toml(value):
    """A value of --set."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, default=plain, ensure_ascii=False)


def words(options):
    """Keywords as words of a command line."""
    result = []
    for name, value in options.items():
        option = "--" + name.strip("_").replace("_", "-")
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, dict):
            value = [f"{key}={toml(x)}" for key, x in value.items()]
        if value is True:
            result.append(option)
        elif value is not None and value is not False:
            for one in [value] if isinstance(value, (str, bytes, os.PathLike)) or not hasattr(value, "__iter__") else value:
                result += [option, os.fsdecode(one) if isinstance(one, (bytes, os.PathLike)) else str(one)]
    return result


def document_of(output):
    try:
        return json.loads(output)
    except ValueError:
        return {}


def started(arguments, options, **streams):
    """The program as a process with --json."""
    line = [program(), *(os.fsdecode(x) for x in arguments), "--json", *words(options)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace", **streams)


def ended(arguments, options, good=(0,), beside=lambda process: None):
    """Runs the program to its end: its document, and its text for people.

    beside(process) is called while it runs. An exception, such as KeyboardInterrupt, stops the program by SIGTERM, waits
    until it has saved, and is raised again."""
    streams = {}
    with started(arguments, options, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        readers = [threading.Thread(target=lambda name=name, file=file: streams.update({name: file.read()}), daemon=True)
                   for name, file in (("out", process.stdout), ("err", process.stderr))]
        for reader in readers:
            reader.start()
        try:
            beside(process)
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            for reader in readers:
                reader.join()
    document = document_of(streams["out"])
    if process.returncode not in good:
        raise error_of(arguments[0], process.returncode, document, streams["err"])
    return document, streams["err"]


def call(command, *arguments, picture=None, good=(0,), **options):
    """Runs `tutti COMMAND ARGUMENTS --json OPTIONS` and returns its Result.

    command: such as "plan" or "data tokenize". picture: a file that an option makes the command write; its text becomes
    the picture of the result. good: exit codes that are answers (verify: 1 is "different"). Raises Error."""
    if not command.split():
        raise ValueError("a command has at least one word, such as 'plan'")
    document, said = ended([*command.split(), *arguments], options, good)
    drawn = pathlib.Path(picture).read_text(encoding="utf-8") if picture and os.path.exists(picture) else None
    return Result(document, said, drawn)
