#!/usr/bin/env python3
"""Strangers: connects to every port that listens in this network namespace, again and again, as scanners, probes and
attackers do, until it is ended or has made COUNT connections. Bounded: RATE connections a second, 200 open at a time.

  strangers.py [--rate RATE] [--count COUNT] [--port PORT ...] [--log FILE]
"""
import argparse
import collections
import json
import os
import random
import signal
import socket
import struct
import time

TEXT = b"hello from a stranger"


def listening():
    """Ports of TCP listeners of this namespace."""
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            for line in open(table).readlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    ports.add(int(words[1].rsplit(":", 1)[1], 16))
        except OSError:
            pass
    return ports


def words(source):
    """What a stranger says: nothing, text of another protocol, frames of ours, endless ones, noise."""
    kind = source.randrange(8)
    if kind == 0:
        return b""
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    if kind == 2:  # each type of frame
        return struct.pack("<IB", len(TEXT), source.randrange(8)) + TEXT
    if kind == 3:
        return struct.pack("<IB", 50 << 20, source.randrange(8)) + TEXT * 100
    if kind == 4:  # a join of the right size
        return struct.pack("<IB", 848, 1) + source.randbytes(848)
    if kind == 5:  # the head of a hello, or of data
        return struct.pack("<IiqQ", source.randrange(5), 1, source.choice([32, 1 << 40]), 0) + source.randbytes(32)
    if kind == 6:
        return b"\x16\x03\x01" + source.randbytes(200)
    return source.randbytes(source.randrange(1, 5000))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--count", type=int, default=1 << 62)
    parser.add_argument("--port", type=int, nargs="*", default=[])
    parser.add_argument("--log")
    options = parser.parse_args()
    source = random.Random(os.getpid())
    ended = []  # an exception of a handler may be lost inside a destructor
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    held, counts = collections.deque(), collections.Counter()
    ports, begin = [], time.monotonic()
    try:
        while counts["tried"] < options.count and not ended:
            if not ports or counts["tried"] % 100 == 0:  # the table is long when many wait
                ports = sorted(set(options.port) | listening())
            time.sleep(max(0.0, begin + counts["tried"] / options.rate - time.monotonic()) if ports else 0.02)
            if not ports:
                begin = time.monotonic() - counts["tried"] / options.rate
                continue
            counts["tried"] += 1
            try:
                s = socket.create_connection(("127.0.0.1", source.choice(ports)), timeout=0.02)
                counts["connected"] += 1
                s.setblocking(False)
                s.send(words(source))
                if source.random() < 0.5:
                    s.close()
                else:
                    held.append(s)
            except OSError as error:
                counts[type(error).__name__] += 1  # TimeoutError: the queue of a rank that computes is full
            if len(held) > 200:
                held.popleft().close()
    finally:
        if options.log:
            with open(options.log, "a") as log:
                log.write(json.dumps({"seconds": round(time.monotonic() - begin, 1), **counts}) + "\n")


main()
