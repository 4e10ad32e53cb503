"""python/test_tutti.py PROGRAM: the module against the program: results equal those of the command, errors are exceptions
with code and message, training calls back once a step, the exporters send what was logged. pandas and the trackers are
replaced by small modules of the same interface, present or absent; nothing is installed."""

import contextlib
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
PROGRAM = os.environ["TUTTI_PROGRAM"] = os.path.abspath(sys.argv.pop(1))

import tutti  # noqa: E402
from tutti import calls, export, runs  # noqa: E402

CONFIG = """
[model]
preset = "llama-tiny"
[data]
train = ["{folder}/text.txt"]
[train]
steps = {steps}
seq_len = 32
global_batch = 4
micro_batch = 4
threads = 1
[log]
every = 1
[checkpoint]
every = 1000000
"""


def said_by(*words):
    done = subprocess.run([PROGRAM, *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return json.loads(done.stdout)


@contextlib.contextmanager
def module(name, value):
    """`import name` gives `value`; None: it fails as if it were not installed."""
    before = sys.modules.get(name)
    sys.modules[name] = value
    try:
        yield value
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        pathlib.Path(self.folder, "text.txt").write_text("all together now, tutti.\n" * 200, encoding="utf-8")

    def config(self, steps=6):
        path = pathlib.Path(self.folder, f"run-{steps}.toml")
        path.write_text(CONFIG.format(folder=self.folder, steps=steps), encoding="utf-8")
        return path

    def path(self, name):
        return os.path.join(self.folder, name)


class Answers(InFolder):
    """Each function returns the document of its command, and the text that the command prints."""

    def test_rehearse(self):
        ours = tutti.rehearse(self.config(), ranks=4, set={"parallel.zero": 3, "train.micro_batch": 1})
        theirs = said_by("rehearse", str(self.config()), "--ranks", "4", "--set", "parallel.zero=3", "--set",
                         "train.micro_batch=1")
        for changing in ("available_bytes", "memory_here", "host"):  # of this moment
            ours.pop(changing, None), theirs.pop(changing, None)
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertEqual(ours["memory"], theirs["memory"])
        self.assertIn("FLOPs", ours.text)
        self.assertIn("<svg", ours._repr_html_())

    def test_simulate(self):
        asked = {"model": "llama-110m", "cluster": "h100", "ranks": 8, "set": ["train.global_batch=64"]}
        ours = tutti.simulate(**asked)
        theirs = said_by("simulate", "--model", "llama-110m", "--cluster", "h100", "--ranks", "8", "--set",
                         "train.global_batch=64")
        self.assertEqual(ours, theirs)
        self.assertIn("<svg", ours.picture)

    def test_plan(self):
        ours = tutti.plan(model="llama-110m", cluster="h100", gpus=8, global_batch=64, seq_len=1024)
        theirs = said_by("plan", "--model", "llama-110m", "--cluster", "h100", "--gpus", "8", "--global-batch", "64",
                         "--seq-len", "1024")
        ours.pop("seconds", None), theirs.pop("seconds", None)
        self.assertEqual(set(ours), set(theirs))
        first = next(key for key in ours if isinstance(ours[key], list) and ours[key])
        self.assertEqual(ours[first], theirs[first])
        self.assertIn("<iframe", ours._repr_html_())

    def test_schedule(self):
        ours = tutti.schedule("zb-v", stages=4, microbatches=8)
        self.assertEqual(ours, said_by("schedule", "--kind", "zb-v", "--stages", "4", "--microbatches", "8"))
        self.assertIn("<svg", ours.picture)
        self.assertEqual(tutti.schedule("all", stages=4, microbatches=8),
                         said_by("schedule", "--kind", "all", "--stages", "4", "--microbatches", "8"))

    def test_verify(self):
        ours = tutti.verify(self.config(), ranks=2, set={"parallel.zero": 3, "train.micro_batch": 2}, steps=1)
        self.assertTrue(ours["within_bound"])
        self.assertIn("the same as one rank", ours.text)

    def test_inspect(self):
        ours = tutti.inspect(self.config(), precision=True, set={"precision.compute": "bf16"})
        self.assertEqual(ours, said_by("inspect", "--precision", str(self.config()), "--set", "precision.compute=bf16"))
        self.assertIn("as run", ours.text)
        self.assertIn("<svg", ours.picture)
        self.assertEqual(tutti.inspect(number=0.3952), said_by("inspect", "--number", "0.3952"))

    def test_models(self):
        self.assertEqual(tutti.models(), said_by("models"))

    def test_any_command(self):
        self.assertEqual(tutti.call("version"), said_by("version"))
        out = self.path("tokens")
        ours = tutti.call("data tokenize", self.path("text.txt"), out=out, append_eod=False)
        self.assertEqual(ours["tokens"], 25 * 200)


class Errors(InFolder):
    def test_kinds(self):
        with self.assertRaises(tutti.UsageError) as usage:
            tutti.rehearse(self.config(), set={"train.stepz": 3})
        self.assertEqual(usage.exception.exit_code, 2)
        self.assertIn("train.steps", str(usage.exception))
        with self.assertRaises(tutti.DataError) as data:
            tutti.generate(self.path("text.txt"), prompt="x")
        self.assertEqual(data.exception.exit_code, 3)
        self.assertIsInstance(data.exception, tutti.Error)

    def test_no_program(self):
        with unittest.mock.patch.dict(os.environ, {"TUTTI_PROGRAM": "/nowhere/tutti"}):
            with self.assertRaisesRegex(tutti.UsageError, "/nowhere/tutti"):
                calls.program()

    def test_words(self):
        self.assertEqual(calls.words({"seq_len": 8, "set": {"a.b": True, "c.d": [1, 2]}, "json": None, "from": "x",
                                        "greedy": True, "ids": False, "prompt": ["a", "b"]}),
                         ["--seq-len", "8", "--set", "a.b=true", "--set", "c.d=[1, 2]", "--from", "x", "--greedy",
                          "--prompt", "a", "--prompt", "b"])

    def test_paths_and_numbers_are_values(self):
        number = types.SimpleNamespace(tolist=lambda: 3)  # as of numpy
        self.assertEqual(calls.words({"out": b"dir", "model": pathlib.Path("m"), "set": {"a.b": [pathlib.Path("p"), "\U0001f600"],
                                                                                         "c.d": number}}),
                         ["--out", "dir", "--model", "m", "--set", 'a.b=["p", "\U0001f600"]', "--set", "c.d=3"])
        with self.assertRaises(TypeError):
            calls.words({"set": {"a.b": object()}})

    def test_every_iterable_repeats_its_option(self):
        array, flag = types.SimpleNamespace(tolist=lambda: ["a", "b"]), types.SimpleNamespace(tolist=lambda: True)
        for values in (["a", "b"], ("a", "b"), iter("ab"), {"a": 0, "b": 0}.keys(), array):
            self.assertEqual(calls.words({"prompt": values}), ["--prompt", "a", "--prompt", "b"])
        self.assertEqual(calls.words({"set_cluster": {"network.gbs": 35}, "layout": flag, "prompt": "ab"}),
                         ["--set-cluster", "network.gbs=35", "--layout", "--prompt", "ab"])
        self.assertEqual(calls.words({"set": {"a.b": array}}), ["--set", 'a.b=["a", "b"]'])

    def test_a_command_has_a_word(self):
        with self.assertRaises(ValueError):
            tutti.call(" ")

    def test_errors_pass_between_processes(self):
        error = pickle.loads(pickle.dumps(tutti.DataError("no file", 3)))
        self.assertEqual((type(error), str(error), error.exit_code), (tutti.DataError, "no file", 3))


class Training(InFolder):
    def test_each_step_once_and_resumed(self):
        seen, out = [], self.path("run")
        run = tutti.train(self.config(6), out=out, on_step=seen.append)
        self.assertEqual([step["step"] for step in seen], list(range(1, 7)))
        self.assertEqual(seen, run.metrics())
        self.assertEqual(run.outcome["loss"], run.metrics()[-1]["loss"])
        self.assertEqual(run.totals()["steps"], 6)
        again = []
        tutti.train(self.config(9), out=out, on_step=again.append)  # continues
        self.assertEqual([step["step"] for step in again], [7, 8, 9])
        self.assertIn("<iframe", run._repr_html_())
        self.assertIn('preset = "llama-tiny"', run.config())
        text = tutti.generate(run, prompt="all ", max_tokens=4, greedy=True)
        self.assertEqual(len(text["tokens"]), 4)

    def test_a_conversation_is_that_of_the_command(self):
        run = tutti.train(self.config(2), out=self.path("run"))
        template = self.path("template.jinja")
        pathlib.Path(template).write_text(
            "{% for m in messages %}{{ m.content }}|{% endfor %}", encoding="utf-8")
        options = {"template": template, "system": "S", "max_tokens": 2, "seed": 7}  # of 32 positions
        messages = ["Hi", 'a\n"b"', "more"]
        with tutti.chat(run, **options) as chat:
            answers = [chat.say(message) for message in messages]
            self.assertEqual([m["role"] for m in chat.messages], ["user", "assistant"] * 3)
            self.assertEqual(chat.messages[-1], answers[-1]["message"])
            self.assertIn("<td>more</td>", chat._repr_html_())
            chat.reset()
            self.assertEqual(chat.messages, [])
            again = chat.say("Hi")
        line = [PROGRAM, "chat", run.path, "--json", "--template", template, "--system", "S", "--max-tokens", "2", "--seed", "7"]
        said = "".join(json.dumps(m) + "\n" for m in messages) + "/reset\nHi\n"
        done = subprocess.run(line, input=said, stdout=subprocess.PIPE, text=True, check=True)
        documents = json.loads("[" + done.stdout.replace("\n}\n{", "\n},\n{") + "]")
        self.assertEqual([d["tokens"] for d in documents], [d["tokens"] for d in [*answers, again]])
        for over in (lambda: chat.say("it is over"), chat.reset):
            with self.assertRaisesRegex(tutti.UsageError, "this conversation has ended"):
                over()
        with tutti.chat(run, **options) as chat:
            for message, kind in (("", ValueError), ("\ud800", UnicodeEncodeError), (b"Hi", TypeError), ({"role": "user"}, TypeError)):
                with self.assertRaises(kind):
                    chat.say(message)
            self.assertEqual(chat.say("Hi")["tokens"], answers[0]["tokens"])
        with tutti.chat(run, **options) as chat:
            with self.assertRaises(tutti.UsageError) as error:
                chat.say("x" * 100)
            self.assertIn("leaves no room", str(error.exception))
            self.assertEqual(chat.say("Hi")["tokens"], answers[0]["tokens"])

    def test_a_conversation_that_cannot_begin_or_go_on(self):
        run = tutti.train(self.config(2), out=self.path("run"))
        with self.assertRaises(tutti.DataError) as error:
            with tutti.chat(run) as chat:
                chat.say("Hi")
        self.assertIn("no chat template", str(error.exception))
        with self.assertRaises(tutti.UsageError):
            tutti.chat(run, no_such_option=1).say("Hi")
        for _ in range(5):  # before the program has written its document, and after
            with self.assertRaisesRegex(tutti.DataError, "absent does not exist"):
                with tutti.chat(self.path("absent")):
                    pass
        with self.assertRaisesRegex(tutti.Error, "tutti chat was ended by signal 9"):
            with tutti.chat(run) as chat:
                chat._process.kill()
                chat.say("Hi")
        with self.assertRaises(KeyError):  # the program is ended with the block
            with tutti.chat(run) as chat:
                raise KeyError

    def test_false_stops_with_a_checkpoint(self):
        run = tutti.train(self.config(1000000), out=self.path("long"), on_step=lambda step: step["step"] < 3)
        self.assertTrue(run.outcome["preempted"])
        self.assertTrue(os.path.exists(run.outcome["checkpoint"]))

    def test_an_exception_stops_and_is_raised(self):
        def refuse(step):
            raise KeyError(step["step"])

        with self.assertRaises(KeyError):
            tutti.train(self.config(1000000), out=self.path("raised"), on_step=refuse)

    def test_a_false_value_of_another_type_stops(self):
        class Bool:  # as numpy's
            def __bool__(self):
                return False

        run = tutti.train(self.config(3000), out=self.path("long"), on_step=lambda step: Bool())
        self.assertTrue(run.outcome["preempted"])

    def test_an_interrupted_call_stops_the_program_before_it_returns(self):
        def interrupt(process):
            while not os.path.exists(self.path("run/metrics.jsonl")):
                self.assertIsNone(process.poll())
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            calls.ended(["train", self.config(1000000)], {"out": self.path("run")}, beside=interrupt)
        self.assertTrue(list(pathlib.Path(self.path("run/checkpoints")).glob("step-*")))

    def test_a_killed_run_is_said_to_be_killed(self):
        with self.assertRaisesRegex(tutti.Error, r"tutti train was ended by signal 9 \(Killed\); it said last:") as error:
            calls.ended(["train", self.config(1000000)], {"out": self.path("run")}, beside=lambda process: process.kill())
        self.assertEqual(error.exception.exit_code, -9)

    def test_a_dry_run_is_a_document(self):
        self.assertTrue(tutti.train(self.config(), dry_run=True)["dry_run"])

    def test_a_run_that_fails(self):
        with self.assertRaises(tutti.UsageError):
            tutti.train(self.config(), out=self.path("no"), on_step=print, set={"parallel.tp": 3})
        with self.assertRaises(TypeError):
            tutti.train(self.config(), on_step=print)


class Frames(InFolder):
    def write(self, *steps):
        pathlib.Path(self.path("metrics.jsonl")).write_text("".join(json.dumps(s) + "\n" for s in steps),
                                                            encoding="utf-8")
        pathlib.Path(self.path("config.toml")).write_text('[train]\nsteps = 3\n[optimizer]\nlr = 3e-4\n', encoding="utf-8")

    def test_without_pandas(self):
        self.write({"step": 1})
        with module("pandas", None), self.assertRaisesRegex(ImportError, "metrics"):
            runs.Run(self.folder).frame()

    def test_with_pandas(self):
        self.write({"step": 1, "loss": 2.5, "comm": {"dp": {"bytes": 7}}}, {"step": 2, "loss": 2.25})
        try:
            import pandas  # noqa: F401
        except ImportError:
            class Table(list):
                def set_index(self, name):
                    return {row[name]: row for row in self}

                def __contains__(self, name):
                    return name in self[0]

            with module("pandas", types.SimpleNamespace(json_normalize=Table)):
                self.assertEqual(runs.Run(self.folder).frame()[2]["loss"], 2.25)
            return
        frame = runs.Run(self.folder).frame()
        self.assertEqual(list(frame.index), [1, 2])
        self.assertEqual(frame.loc[1, "comm.dp.bytes"], 7)

    def test_a_file_that_is_written_anew(self):
        self.write({"step": 1, "s": 1}, {"step": 2, "s": 1})
        tail = runs.Tail(self.folder)
        self.assertEqual([s["step"] for s in tail.new()], [1, 2])
        self.assertEqual(list(tail.new()), [])
        new = self.path("new")
        pathlib.Path(new).write_text('{"step": 1, "s": 1}\n{"step": 2, "s": 2}\n{"step": 3, "s": 2}\n{"ste', encoding="utf-8")
        os.replace(new, self.path("metrics.jsonl"))
        self.assertEqual([s["step"] for s in tail.new()], [2, 3])

    def test_exports(self):
        self.write({"step": 1, "loss": 2.5, "ok": True, "who": "x", "comm": {"dp": 7}}, {"step": 2, "loss": 2.25})
        pathlib.Path(self.path("run.json")).write_text("{}", encoding="utf-8")
        for to in ("wandb", "trackio"):
            calls = []
            fake = types.SimpleNamespace(init=lambda **k: calls.append(k), log=lambda v, step: calls.append((step, v)),
                                         finish=lambda: calls.append("end"))
            with module(to, fake), contextlib.redirect_stderr(io.StringIO()):
                export.main([self.folder, "--to", to, "--name", "n"])
            self.assertEqual(calls, [{"project": "tutti", "name": "n",
                                      "config": {"train.steps": "3", "optimizer.lr": "3e-4"}},
                                     (1, {"loss": 2.5, "comm.dp": 7}), (2, {"loss": 2.25}), "end"])
        calls = []
        fake = types.SimpleNamespace(set_experiment=calls.append, start_run=lambda run_name: calls.append(run_name),
                                     log_param=lambda k, v: calls.append((k, v)),
                                     log_metrics=lambda v, step: calls.append((step, v)),
                                     end_run=lambda: calls.append("end"))
        with module("mlflow", fake):
            self.assertEqual(export.export(self.folder, "mlflow", name="n"), 2)
        self.assertEqual(calls[0:2], ["tutti", "n"])
        self.assertEqual(calls[-2:], [(2, {"loss": 2.25}), "end"])
        with module("wandb", None), self.assertRaisesRegex(tutti.UsageError, "pip install wandb"):
            export.export(self.folder, "wandb")

    def test_tables_of_a_list_are_settings_of_their_own(self):
        expected, config = {"train.steps": "9"}, "[train]\nsteps = 9\n"
        for table in ("optimizer.group", "stage"):
            for number in (1, 2, 3):
                config += f"\n[[{table}]]\nuntil = {number}\ndata.train = [\"a = b\"]\n"
                expected.update({f"{table}.{number}.until": str(number), f"{table}.{number}.data.train": '["a = b"]'})
        self.assertEqual(export.settings(config), expected)

    def test_what_is_no_run_is_said(self):
        absent = tutti.Run(self.path("absent"))
        for read in (absent.metrics, absent.totals, absent.config):
            with self.assertRaisesRegex(tutti.DataError, "absent: required: the directory of a run, .* it does not exist"):
                read()
        os.mkdir(absent)
        with self.assertRaisesRegex(tutti.DataError, "config.toml: required"):
            absent.config()
        said = io.StringIO()
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(said):
            export.main([absent.path, "--to", "wandb"])
        self.assertEqual(ended.exception.code, 3)
        self.assertIn("config.toml: required", said.getvalue())


if __name__ == "__main__":
    unittest.main()
