"""A conversation with a model, which stays loaded between the answers."""

import contextlib
import html
import json
import subprocess
import tempfile
import threading

from .calls import UsageError, document_of, error_of, started


class Chat:
    """`tutti chat MODEL --json` as a process: say() sends a message and returns the document of the answer.

    A context manager; close() ends it. messages: the conversation so far, {"role", "content"}, without the system's.
    Several threads may say(): one message is answered after the other."""

    def __init__(self, model, **options):
        self.messages = []
        self._turn, self._failed = threading.Lock(), False
        self._errors = tempfile.TemporaryFile()
        self._process = started(["chat", model], options, stdin=subprocess.PIPE, stderr=self._errors)

    def say(self, message):
        """{"message", "prompt_tokens", "tokens", "ended_by", "seconds", ...}.

        Raises Error; the conversation goes on without a message that has no answer, as one that is too long."""
        if not isinstance(message, str):
            raise TypeError(f"a message is a str, not {type(message).__name__}")
        if not message:
            raise ValueError("a message has at least one character")
        message.encode("utf-8")  # raises: the pipe would replace half of a surrogate pair
        with self._turn:
            document = self._answer_to(json.dumps(message, ensure_ascii=False))
            self.messages += [{"role": "user", "content": message}, document["message"]]
        return document

    def reset(self):
        """Begins a new conversation."""
        with self._turn:
            self._send("/reset")
            self.messages = []

    def close(self):
        """Ends the program. Raises Error where it has failed and say() has not said so."""
        if self._process.stdout.closed:
            return
        error = self._end()
        if error.exit_code != 0 and not self._failed:
            raise error

    def _send(self, line):
        if self._process.stdout.closed:
            raise UsageError("this conversation has ended: tutti.chat() begins another one", 2)
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._end() from None

    def _answer_to(self, line):
        self._send(line)
        document = self._document()
        if "message" in document:
            return document
        self._failed = True
        if "question" in document:  # which alone failed
            raise error_of("chat", document["exit_code"], document, "")
        raise self._end(document)

    def _document(self):
        text = ""
        for line in self._process.stdout:
            text += line
            if line == "}\n":  # of an indented document
                break
        return document_of(text)

    def _end(self, document=None):
        """Ends the program: its error, with exit code 0 where there is none."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        document = document or self._document()
        self._process.stdout.close()
        code = self._process.wait()
        with self._errors:
            self._errors.seek(0)
            return error_of("chat", code, document, self._errors.read().decode("utf-8", "replace"))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
            return
        if not self._process.stdout.closed:
            self._process.kill()
            self._end()

    def _repr_html_(self):
        rows = "".join(f"<tr><th>{m['role']}</th><td>{html.escape(m['content'])}</td></tr>" for m in self.messages)
        return f"<table>{rows}</table>"


def chat(model, **options):
    """A conversation with a Run or a directory: `tutti chat`. Options: system="Be brief.", ranks=4, greedy=True, ..."""
    return Chat(model, **options)
