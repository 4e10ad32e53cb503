"""A conversation with a model, which stays loaded between the answers."""

import html
import json
import os
import subprocess
import tempfile

from .calls import document_of, error_of, program, words


class Chat:
    """`tutti chat MODEL --json` as a process: say() sends a message and returns the document of the answer.

    A context manager; close() ends it. messages: the conversation so far, {"role", "content"}, without the system's."""

    def __init__(self, model, **options):
        line = [program(), "chat", os.fspath(getattr(model, "path", model)), "--json", *words(options)]
        self.messages = []
        self._errors, self._said, self._failed = tempfile.TemporaryFile(), "", False
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                                         text=True, encoding="utf-8", errors="replace")

    def say(self, message):
        """{"message", "prompt_tokens", "tokens", "ended_by", "seconds", ...}.

        Raises Error; the conversation goes on without a message that has no answer, as one that is too long."""
        if not message:
            raise ValueError("a message has at least one character")
        self._send(json.dumps(message))
        document = document_of(self._answer())
        if "message" not in document:
            self._raise(document)
        self.messages += [{"role": "user", "content": message}, document["message"]]
        return document

    def reset(self):
        """Begins a new conversation."""
        self._send("/reset")
        self.messages = []

    def close(self):
        """Ends the program. Raises Error where it has failed and say() has not said so."""
        if self._end() != 0 and not self._failed:
            self._raise({})

    def _send(self, line):
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # the program has ended, or close() was called
            self._raise(document_of(self._answer()))

    def _answer(self):
        text = ""
        if not self._process.stdout.closed:
            for line in self._process.stdout:
                text += line
                if line == "}\n":  # of an indented document
                    break
        return text

    def _end(self):
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.stdout.close()
        code = self._process.wait()
        if not self._errors.closed:
            self._errors.seek(0)
            self._said = self._errors.read().decode("utf-8", "replace").strip()
            self._errors.close()
        return code

    def _raise(self, document):
        self._failed = True
        code = document["exit_code"] if "question" in document else self._end() or 2
        raise error_of(document.get("error") or self._said or "the conversation has ended", code)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
            return
        self._process.kill()
        self._end()

    def _repr_html_(self):
        rows = "".join(f"<tr><th>{m['role']}</th><td>{html.escape(m['content'])}</td></tr>" for m in self.messages)
        return f"<table>{rows}</table>"


def chat(model, **options):
    """A conversation with a Run or a directory: `tutti chat`. Options: system="Be brief.", ranks=4, greedy=True, ..."""
    return Chat(model, **options)
