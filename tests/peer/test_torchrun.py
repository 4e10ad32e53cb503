"""Ranks started by PyTorch's own torchrun: they meet beside the agent's store, train as threads do, and a killed rank
is named by the others. Usage: test_torchrun.py PROCESS_RANKS TUTTI"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

RANKS, TUTTI = sys.argv[1:3]
AGENT = [sys.executable, "-m", "torch.distributed.run"]
CONFIG = """
[model]
preset = "llama-tiny"
width = 32
layers = 2
heads = 2
kv_heads = 2
head_dim = 16
ffn = 48
[data]
train = ["{text}"]
[train]
steps = 10
seq_len = 16
global_batch = 8
micro_batch = 1
threads = 1
[parallel]
zero = 2
[log]
every = 1
[checkpoint]
every = 0
[comm]
timeout_s = 60
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(*commands, code=0):
    """Runs all at once; what they wrote, together."""
    running = [
        subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in commands
    ]
    texts, codes = [], []
    for process in running:
        texts.append(process.communicate(timeout=240)[0])
        codes.append(process.returncode)
    text = "\n".join(texts)
    assert all((c == 0) == (code == 0) for c in codes), f"exit codes {codes}, expected {code}:\n{text}"
    return text


def metrics(folder):
    lines = [json.loads(line) for line in open(folder / "metrics.jsonl")]
    return [(m["step"], m["loss"], m["grad_norm"]) for m in lines]


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    one_node = [*AGENT, "--standalone", "--nproc-per-node", "4", "--no-python"]
    run([*one_node, RANKS, "conformance", "tcp"])
    print("conformance of 4 ranks under one agent")
    os.environ["TUTTI_SECRET"] = "the secret of two nodes"

    for backend in ("static", "c10d"):
        port = free_port()
        nodes = []
        for node in range(2):
            start = [*AGENT, "--nnodes", "2", "--nproc-per-node", "2", "--no-python"]
            if backend == "static":
                start += ["--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]
            else:
                start += ["--rdzv-backend", "c10d", "--rdzv-id", "tutti", "--rdzv-endpoint", f"127.0.0.1:{port}"]
            nodes.append([*start, RANKS, "conformance", "tcp"])
        run(*nodes)
        print(f"conformance of 2 x 2 ranks under two agents ({backend} rendezvous)")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("".join(f"line {i * i} of a text that repeats itself\n" for i in range(300)))
        (folder / "tiny.toml").write_text(CONFIG.format(text=folder / "text.txt"))
        train = [TUTTI, "train", str(folder / "tiny.toml"), "--out"]
        run([*one_node, *train, str(folder / "torchrun")])
        run([*train, str(folder / "threads"), "--ranks", "4"])
        expected = metrics(folder / "threads")
        assert len(expected) == 10 and metrics(folder / "torchrun") == expected
        print("a run under torchrun is the run of threads, to the bit")

        os.environ["TUTTI_TEST_DIR"] = name
        text = run([*one_node, RANKS, "exit", "tcp"], code=1)
        assert "rank 1 has died" in text, text
        print("a rank that disappears is named")


main()
