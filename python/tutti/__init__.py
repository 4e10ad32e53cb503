"""Tutti from Python: each function runs a command of the program `tutti` and returns its JSON document.

    import tutti

    tutti.plan(model="llama3-70b", cluster="h100", gpus=256, global_batch=1024, seq_len=8192)
    tutti.rehearse("run.toml", ranks=8, set={"parallel.zero": 3})
    run = tutti.train("run.toml", out="runs/first", on_step=lambda step: print(step["loss"]))
    run.frame()                                    # pandas.DataFrame of the logged steps, where pandas is installed
    tutti.generate(run, prompt="In the beginning")
    with tutti.chat("models/Qwen3-0.6B") as chat:
        print(chat.say("What is a pipeline bubble?")["message"]["content"])

A keyword is an option of the command: `seq_len=8192` is `--seq-len 8192`, `True` is a flag, a list or another
iterable repeats the option, and a dict gives KEY=VALUE. Errors are exceptions with the program's message and exit
code (docs/config.md). In a notebook a result shows the text, and where there is one the picture, that the command
makes. The module needs the standard library alone. There is no binding: the program of the same wheel runs, or the
one that TUTTI_PROGRAM names.
"""

from .calls import DataError, Error, Result, RunError, UsageError, call, program
from .chats import Chat, chat
from .commands import convert, generate, inspect, models, plan, rehearse, schedule, simulate, verify
from .runs import Run, train

__all__ = ["Chat", "DataError", "Error", "Result", "Run", "RunError", "UsageError", "call", "chat", "convert", "generate",
           "inspect", "models", "plan", "program", "rehearse", "schedule", "simulate", "train", "verify"]
