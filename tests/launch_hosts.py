#!/usr/bin/env python3
"""tutti launch on hosts in network namespaces of their own, with process tables of their own. Over a real sshd: a host is
cut off and comes back; an agent, an ssh client and the launcher are killed. And as srun or pods start it, one process a
host: agents dial in, are cut off, and dial in again.

Usage: launch_hosts.py TUTTI [FAULTS [RESULT]]; FAULTS random ones at the end, 6 without it, each a line of the file RESULT.
Exit code 77 where this machine has no sshd or permits no namespaces (root).
"""

import array
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

TUTTI = sys.argv[1]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
NET = f"10.{os.getpid() % 250 + 1}"
HOSTS = {"a": 5, "b": 3}
ADDRESS = {host: f"{NET}.{number}.1" for number, host in enumerate(HOSTS, 1)}


def name_of(host):
    return f"tuttil{host}{os.getpid()}"


def sh(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def inside(host, *words):
    return ["ip", "netns", "exec", name_of(host), *words]


class Hosts:
    """The hosts, and `l` for the launcher, which also passes packets between them."""

    def __init__(self, folder):
        self.folder, self.servers = folder, {}
        sh("ip", "netns", "add", name_of("l"))
        sh(*inside("l", "ip", "link", "set", "lo", "up"))
        for host, address in ADDRESS.items():
            sh("ip", "netns", "add", name_of(host))
            sh(*inside("l", "ip", "link", "add", f"p{host}", "type", "veth", "peer", "name", "e", "netns", name_of(host)))
            router = address[:-1] + "2"
            for space, link, own in (("l", f"p{host}", router), (host, "e", address)):
                sh(*inside(space, "ip", "addr", "add", f"{own}/24", "dev", link))
                sh(*inside(space, "ip", "link", "set", link, "up"))
            sh(*inside(host, "ip", "link", "set", "lo", "up"))
            sh(*inside(host, "ip", "route", "add", "default", "via", router))
        sh(*inside("l", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/key")
        os.makedirs("/run/sshd", exist_ok=True)
        for host, address in ADDRESS.items():
            config = folder / f"sshd-{host}"
            config.write_text(f"Port 22\nListenAddress {address}\nHostKey {folder}/key\nPidFile none\nUsePAM no\n"
                              f"AuthorizedKeysFile {folder}/key.pub\nStrictModes no\nPermitRootLogin yes\n")
            self.servers[host] = subprocess.Popen(
                inside(host, "unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
                       f"hostname {host}; exec {SSHD} -D -e -f {config}"), stderr=subprocess.DEVNULL)
        (folder / "hosts").write_text("".join(
            f"{address} slots={HOSTS[host]}\n" for host, address in ADDRESS.items()))

    def cut(self, host, is_up):
        sh(*inside("l", "ip", "link", "set", f"p{host}", "up" if is_up else "down"))
        if is_up:  # some kernels drop the route of a link that is down, and do not make it again
            sh(*inside("l", "ip", "addr", "flush", "dev", f"p{host}"))
            sh(*inside("l", "ip", "addr", "add", f"{ADDRESS[host][:-1]}2/24", "dev", f"p{host}"))

    def processes(self, host):
        """The tutti processes of a host: {pid: words}."""
        found = {}
        for pid in sh("ip", "netns", "pids", name_of(host)).split():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if len(words) > 1 and words[0].endswith(b"tutti"):
                found[int(pid)] = words[1].decode()
        return found

    def end(self):
        for server in self.servers.values():
            server.kill()
            server.wait()
        for host in ["l", *HOSTS]:
            subprocess.run(["ip", "netns", "del", name_of(host)], check=False, capture_output=True)


class Run:
    def __init__(self, tutti, hosts, folder, out, *more):
        self.hosts, self.out = hosts, folder / out
        self.err = open(folder / f"{out}.err", "w+")
        ssh = (f"ssh -T -i {folder}/key -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
               "-o LogLevel=ERROR -o ConnectTimeout=3 -o ServerAliveInterval=1 -o ServerAliveCountMax=5")
        self.process = subprocess.Popen(
            inside("l", tutti, "launch", "--hosts", f"{folder}/hosts", "--ssh", ssh, "--silence", "6", "--grow-after",
                   "0", f"{folder}/tiny.toml", "--out", str(self.out), *more), stdout=self.err, stderr=self.err)

    def newest(self):
        steps = [p.name[5:] for p in self.out.glob("checkpoints/step-*")]
        return max((int(s) for s in steps if s.isdigit()), default=0)

    def logged(self):
        """The newest step of the log, which is ahead of the checkpoints on disk."""
        try:
            lines = (self.out / "metrics.jsonl").read_text().split("\n")
        except OSError:
            return 0
        return json.loads(lines[-2])["step"] if len(lines) > 1 else 0

    def events(self, kind):
        try:
            lines = (self.out / "events.jsonl").read_text().split("\n")[:-1]
        except OSError:
            return []
        return [e for e in map(json.loads, lines) if e["event"] == kind]

    def wait(self, fact, what):
        begin = time.monotonic()
        while not fact():
            assert self.process.poll() is None, f"ended before: {what}\n{self.text()}"
            assert time.monotonic() - begin < 120, f"not within 120 s: {what}\n{self.text()}"
            time.sleep(0.01)
        return time.monotonic() - begin

    def wait_for_steps(self, more=4):
        step = self.logged() + more
        return self.wait(lambda: self.logged() >= step, f"step {step}")

    def text(self):
        self.err.flush()
        lines = pathlib.Path(self.err.name).read_text().split("\n")
        return "\n".join(line for line in lines if " | step " not in line)

    def end(self, code, signal_number=None):
        if signal_number:
            self.process.send_signal(signal_number)
        got = self.process.wait(240)
        assert got == code, f"code {got}, expected {code}\n{self.text()}"


class Tasks(Run):
    """One `tutti launch` a host, the first the launcher, as pods start it."""

    SPACES = ["l", *HOSTS]

    def __init__(self, hosts, folder, out, *more):
        self.hosts, self.out = hosts, folder / out
        self.err = open(folder / f"{out}.err", "w+")
        self.words = [TUTTI, "launch", "-n", "8", "--silence", "6", "--grow-after", "0", f"{folder}/tiny.toml", "--out",
                      str(self.out), *more]
        self.tasks = [self.start(number) for number in range(len(self.SPACES))]
        self.process = self.tasks[0]

    def start(self, number):
        place = {"RANK": str(number), "WORLD_SIZE": str(len(self.SPACES)), "MASTER_ADDR": f"{NET}.1.2",
                 "MASTER_PORT": "29400"}
        space = self.SPACES[number]
        return subprocess.Popen(
            inside(space, "unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
                   f'hostname n{space}; exec "$@"', "sh", *self.words),
            env={**os.environ, **place}, stdout=self.err, stderr=self.err)

    def all_end(self, code):
        got = [task.wait(240) for task in self.tasks]
        assert got == [code] * len(got), f"codes {got}, expected {code}\n{self.text()}"


def agents_dial_in(hosts, folder):
    """Of 3, 3 and 2 slots: a host is cut off until both sides have noticed, and comes back; an agent is killed."""
    run = Tasks(hosts, folder, "gathered", "--min-ranks", "5", "--set", "train.steps=100000", "--set",
                "checkpoint.memory_every=2")
    run.wait_for_steps(6)
    hosts.cut("b", False)
    run.wait(lambda: "train" not in hosts.processes("b").values(), "no rank on the host that was cut off")
    assert len(run.events("started")) == 1, run.text()
    took = run.wait(lambda: len(run.events("started")) == 2, "5 ranks") + run.wait_for_steps()
    hosts.cut("b", True)
    back = run.wait(lambda: len(run.events("started")) == 3, "8 ranks again") + run.wait_for_steps()
    print(f"agents that dial in: {took:.1f} s from the end of the ranks of a host that was cut off to 4 steps by the "
          f"others, {back:.1f} s from its return to 4 steps by all")
    run.tasks[1].kill()
    run.wait(lambda: len(run.events("started")) == 4, "a start after the kill of an agent")
    run.wait_for_steps()
    run.tasks[1] = run.start(1)
    run.wait(lambda: len(run.events("started")) == 5, "8 ranks at last")
    run.wait_for_steps()
    assert [e["ranks"] for e in run.events("started")] == [8, 5, 8, 5, 8], run.text()
    pid = next(p for p, words in hosts.processes("l").items() if words == "launch")
    os.kill(pid, signal.SIGTERM)
    run.all_end(75)
    no_process_left(hosts)
    last = run.newest()
    whole = Run(TUTTI, hosts, folder, "whole-gathered", "--set", f"train.steps={last}")
    whole.end(0)
    got, want = losses(run.out), losses(whole.out)
    assert [(x["step"], x["tokens"]) for x in got] == [(x["step"], x["tokens"]) for x in want]
    largest = max(abs(x - y) for x, y in zip(weights(TUTTI, folder, run.out, last), weights(TUTTI, folder, whole.out, last)))
    print(f"{last} steps with two lost hosts: largest difference of a weight {largest:.1e}")
    assert largest <= 1e-5
    # The launcher dies: its agents end, and leave nothing behind.
    run = Tasks(hosts, folder, "headless", "--set", "train.steps=100000")
    run.wait_for_steps()
    run.tasks[0].kill()
    codes = [task.wait(120) for task in run.tasks[1:]]
    assert codes == [5, 5], f"{codes}\n{run.text()}"
    no_process_left(hosts)


def no_process_left(hosts, seconds=30):
    begin = time.monotonic()
    while any(hosts.processes(h) for h in HOSTS):
        assert time.monotonic() - begin < seconds, {h: hosts.processes(h) for h in HOSTS}
        time.sleep(0.05)
    return time.monotonic() - begin


def weights(tutti, folder, run, step):
    to = folder / f"exported-{run.name}"
    if not to.exists():  # exported once
        sh(tutti, "convert", "--from", str(run / "checkpoints" / f"step-{step:010d}"), "--to", str(to), "--dtype", "f32")
    data = (to / "model.safetensors").read_bytes()
    values = array.array("f")
    values.frombytes(data[8 + struct.unpack("<Q", data[:8])[0]:])
    return values


def losses(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]


def a_host_is_cut_off_and_comes_back(tutti, hosts, folder):
    run = Run(tutti, hosts, folder, "cut", "--min-ranks", "5", "--set", "train.steps=100000")
    run.wait_for_steps(6)
    hosts.cut("b", False)
    # Its ranks are killed by an agent that hears nothing, before others take their place.
    run.wait(lambda: not hosts.processes("b"), "no process on the host that was cut off")
    assert len(run.events("started")) == 1, run.text()
    took = run.wait(lambda: len(run.events("started")) == 2, "5 ranks") + run.wait_for_steps()
    print(f"cut off: ranks of that host gone, then {took:.1f} s to 4 steps by 5 ranks")
    hosts.cut("b", True)
    run.wait(lambda: len(run.events("started")) == 3, "8 ranks again")
    run.wait_for_steps()
    run.end(75, signal.SIGTERM)
    no_process_left(hosts)
    assert [e["ranks"] for e in run.events("started")] == [8, 5, 8]

    last = run.newest()
    whole = Run(tutti, hosts, folder, "whole", "--set", f"train.steps={last}")
    whole.end(0)
    got, want = losses(run.out), losses(whole.out)
    assert [(x["step"], x["tokens"]) for x in got] == [(x["step"], x["tokens"]) for x in want]
    largest = max(abs(x - y) for x, y in zip(weights(tutti, folder, run.out, last),
                                             weights(tutti, folder, whole.out, last)))
    print(f"8, 5, 8 ranks over {last} steps: largest difference of a weight {largest:.1e}")
    assert largest <= 1e-5


def nothing_outlives_what_is_killed(tutti, hosts, folder):
    run = Run(tutti, hosts, folder, "kills", "--set", "train.steps=100000")
    for victim in ("rank", "agent", "ssh"):
        run.wait_for_steps()
        starts = len(run.events("started"))
        if victim == "ssh":
            clients = [p for p in sh("ip", "netns", "pids", name_of("l")).split()
                       if pathlib.Path(f"/proc/{p}/cmdline").read_bytes().startswith(b"ssh\0")]
            os.kill(int(clients[-1]), signal.SIGKILL)
        else:
            word = "train" if victim == "rank" else "agent"
            os.kill(next(p for p, words in hosts.processes("b").items() if words == word), signal.SIGKILL)
        seconds = run.wait(lambda s=starts: len(run.events("started")) > s, f"a start after kill -9 of the {victim}")
        print(f"kill -9 of a {victim}: next generation after {seconds:.2f} s")
    run.wait_for_steps()
    run.end(-signal.SIGKILL, signal.SIGKILL)
    print(f"kill -9 of the launcher: no process left after {no_process_left(hosts):.2f} s")


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


# What a fault may cost with copies in memory every 2 steps, of which the last may be half written: ranks alone, 4 steps; a
# host's copy may be on its way: 6.
MOST_LOST = {"kill rank": 4, "stop rank": 4, "kill agent": 6, "kill ssh": 6, "stop agent": 6, "cut": 6}


def random_faults(tutti, hosts, folder, count, result, seed=62):
    """Ranks, agents and ssh clients are killed, ranks and agents stand still, hosts are cut off and come back, while copies
    in memory are made every 2 steps and checkpoints on disk every 24."""
    draw = random.Random(seed)
    run = Run(tutti, hosts, folder, "faults", "--min-ranks", "5", "--set", "train.steps=1000000", "--set",
              "comm.timeout_s=8", "--set", "checkpoint.every=24", "--set", "checkpoint.memory_every=2")
    rows = []
    while len(rows) < count:
        run.wait_for_steps(draw.choice([3, 7, 12]))
        kind = draw.choice(sorted(MOST_LOST))
        host = "b" if kind == "cut" else draw.choice(sorted(HOSTS))
        found = [p for p, words in hosts.processes(host).items() if words == "train"]
        if kind.endswith("agent"):  # not the guards of copies, which are forks of agents
            found = sorted({parent_of(p) for p in found} - {None})
        if kind == "kill ssh":
            found = [int(p) for p in sh("ip", "netns", "pids", name_of("l")).split()
                     if pathlib.Path(f"/proc/{p}/cmdline").read_bytes().startswith(b"ssh\0")]
        if not found or (kind == "cut" and run.events("started")[-1]["ranks"] < 8):
            continue  # that host takes no part at the moment
        resumed, step, ranks = len(run.events("resumed")), run.logged(), run.events("started")[-1]["ranks"]
        begin = time.monotonic()
        if kind == "cut":
            hosts.cut(host, False)
        else:
            os.kill(draw.choice(found), signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)
        run.wait(lambda s=resumed: len(run.events("resumed")) > s, f"a start after: {kind} on {host}")
        next_one = run.events("resumed")[resumed]
        row = {"fault": kind, "host": host, "ranks": ranks, "ranks_after": next_one["ranks"], "step": step,
               "resumed_step": next_one["step"], "from": "memory" if "in memory" in next_one["text"] else "disk",
               "seconds": round(time.monotonic() - begin, 2)}
        rows.append(row)
        print(len(rows), row, flush=True)
        if ranks == 8 and next_one["ranks"] <= 8 and row["from"] == "memory":
            assert row["resumed_step"] >= step - MOST_LOST[kind], run.text()
        if kind == "cut":
            run.wait_for_steps(6)
            hosts.cut(host, True)
    run.wait(lambda: run.events("started")[-1]["ranks"] == 8, "8 ranks at last")
    run.wait_for_steps()
    run.end(75, signal.SIGTERM)
    no_process_left(hosts)
    last = run.newest()
    whole = Run(tutti, hosts, folder, "whole-faults", "--set", f"train.steps={last}")
    whole.end(0)
    # Rounding grows with the steps: what it makes of 5 ranks in place of 8, undisturbed, is the measure.
    five = Run(tutti, hosts, folder, "five-faults", "-n", "5", "--set", f"train.steps={last}")
    five.end(0)
    difference = lambda other: max(abs(x - y) for x, y in zip(weights(tutti, folder, other.out, last),
                                                              weights(tutti, folder, whole.out, last)))
    rounding, largest = difference(five), difference(run)
    got, want = losses(run.out), losses(whole.out)
    assert [(x["step"], x["tokens"]) for x in got] == [(x["step"], x["tokens"]) for x in want]
    numbers = [e["generation"] for e in run.events("resumed")]
    assert numbers == sorted(set(numbers)), numbers  # one writer after the other
    memory = [r for r in rows if r["from"] == "memory"]
    summary = {"faults": len(rows), "from_memory": len(memory), "starts": len(run.events("started")), "steps": last,
               "lost_steps": got[-1]["seconds"]["lost_steps"], "largest_difference": largest, "of_5_undisturbed_ranks": rounding}
    print(summary)
    if result:
        with open(result, "w") as file:
            for row in [*rows, summary]:
                file.write(json.dumps(row) + "\n")
    assert len(memory) > 0
    assert largest <= max(1e-5, 3 * rounding)


def main():
    tutti = TUTTI
    faults = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    result = sys.argv[3] if len(sys.argv) > 3 else None
    if os.geteuid() != 0 or not os.path.exists(SSHD) or not shutil.which("ip") or not shutil.which("ssh-keygen"):
        print("skipped: needs root, sshd, ssh-keygen and ip")
        return 77
    if subprocess.run(["ip", "netns", "add", name_of("p")], check=False, capture_output=True).returncode != 0:
        print("skipped: no network namespaces here")
        return 77
    sh("ip", "netns", "del", name_of("p"))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tutti_launch_"))
    (folder / "text.txt").write_text("".join(f"line {i * i} of a text that repeats itself\n" for i in range(500)))
    (folder / "tiny.toml").write_text(
        '[model]\npreset = "llama-tiny"\nwidth = 32\nlayers = 2\nheads = 2\nkv_heads = 2\nhead_dim = 16\nffn = 48\n'
        f'[data]\ntrain = "{folder}/text.txt"\n[train]\nseq_len = 16\nglobal_batch = 40\nmicro_batch = 1\nthreads = 1\n'
        '[precision]\ncompute = "f32"\n[log]\nevery = 1\n[checkpoint]\nevery = 2\nkeep = 100000\n[optimizer]\nschedule = "constant"\n')
    hosts = None
    try:
        hosts = Hosts(folder)
        a_host_is_cut_off_and_comes_back(tutti, hosts, folder)
        nothing_outlives_what_is_killed(tutti, hosts, folder)
        agents_dial_in(hosts, folder)
        if faults > 0:
            random_faults(tutti, hosts, folder, faults, result)
    finally:
        if hosts:
            hosts.end()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
