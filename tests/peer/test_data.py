"""Token files against numpy: files written as Megatron, nanoGPT and llm.c write them, read by us, and the other way.

    test_data.py TUTTI [TestCase ...]

Run by ctest (label peer). The Megatron writer and reader below follow megatron/core/datasets/indexed_dataset.py.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

TUTTI = None
TYPES = {1: numpy.uint8, 2: numpy.int8, 3: numpy.int16, 4: numpy.int32, 5: numpy.int64, 8: numpy.uint16}


def tutti(*words):
    done = subprocess.run([TUTTI, "data", *map(str, words), "--json"], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def write_megatron(prefix, documents, code):
    """`documents` are lists of sequences."""
    kind = TYPES[code]
    sequences = [numpy.asarray(s, dtype=kind) for d in documents for s in d]
    with open(f"{prefix}.bin", "wb") as file:
        for sequence in sequences:
            file.write(sequence.tobytes(order="C"))
    lengths = numpy.asarray([len(s) for s in sequences], dtype=numpy.int32)
    pointers = numpy.concatenate([[0], numpy.cumsum(lengths.astype(numpy.int64) * kind().itemsize)[:-1]])
    index = numpy.concatenate([[0], numpy.cumsum([len(d) for d in documents])])
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code))
        file.write(struct.pack("<Q", len(sequences)) + struct.pack("<Q", len(index)))
        file.write(lengths.tobytes() + pointers.astype(numpy.int64).tobytes() + index.astype(numpy.int64).tobytes())


def read_megatron(prefix):
    """The documents, each as its sequences."""
    raw = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00" and struct.unpack_from("<Q", raw, 9) == (1,)
    kind = TYPES[raw[17]]
    count, entries = struct.unpack_from("<QQ", raw, 18)
    lengths = numpy.frombuffer(raw, dtype=numpy.int32, count=count, offset=34)
    pointers = numpy.frombuffer(raw, dtype=numpy.int64, count=count, offset=34 + lengths.nbytes)
    index = numpy.frombuffer(raw, dtype=numpy.int64, count=entries, offset=34 + lengths.nbytes + pointers.nbytes)
    tokens = numpy.memmap(f"{prefix}.bin", dtype=kind, mode="r")
    width = kind().itemsize
    sequences = [tokens[p // width:p // width + n].tolist() for p, n in zip(pointers, lengths)]
    return [sequences[a:b] for a, b in zip(index, index[1:])]


class Case(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        self.random = numpy.random.default_rng(7)

    def tearDown(self):
        self._folder.cleanup()

    def check(self, path, documents, eod=()):
        """What `inspect` says of a file with these documents, each a flat list."""
        tokens = [t for d in documents for t in d]
        seen = tutti("inspect", path, *eod)["files"][0]
        self.assertEqual(seen["tokens"], len(tokens))
        self.assertEqual(seen["largest_id"], max(tokens))
        self.assertEqual(seen["first_tokens"], tokens[:16])
        lengths = [len(d) for d in documents if d]
        self.assertEqual(seen["documents"], len(lengths))
        self.assertEqual((seen["shortest_document"], seen["longest_document"]), (min(lengths), max(lengths)))
        tutti("verify", path, "--vocab", max(tokens) + 1)
        with self.assertRaisesRegex(AssertionError, f"token {tokens.index(max(tokens))} .*id {max(tokens)} is outside"):
            tutti("verify", path, "--vocab", max(tokens))


class Megatron(Case):
    def test_ours_reads_what_it_writes(self):
        for code, kind in TYPES.items():
            top = min(numpy.iinfo(kind).max, 2**31 - 2)
            documents = [[self.random.integers(0, top, self.random.integers(0, 50)).tolist() for _ in range(n)]
                         for n in self.random.integers(1, 4, 300)]
            documents[1] = [[top - 1]]
            write_megatron(self.folder / "d", documents, code)
            self.check(self.folder / "d", [[t for s in d for t in s] for d in documents])

    def test_it_reads_what_ours_writes(self):
        texts = ["".join(chr(c) for c in self.random.integers(97, 123, n)) for n in self.random.integers(1, 3000, 2000)]
        (self.folder / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        for threads in (1, 5):
            tutti("tokenize", self.folder / "t.jsonl", "--out", self.folder / "t", "--append-eod", "--eod", 10,
                  "--threads", threads)
            self.assertEqual(read_megatron(self.folder / "t"), [[list(t.encode()) + [10]] for t in texts])


class Flat(Case):
    """nanoGPT: `np.array(ids, dtype=np.uint16).tofile`; llm.c: dev/data/data_common.py."""

    def documents(self, vocab, eod):
        return [self.random.integers(0, eod, self.random.integers(1, 400)).tolist() + [eod] for _ in range(500)]

    def test_ours_reads_nanogpt(self):
        documents = self.documents(50257, 50256)
        numpy.concatenate(documents).astype(numpy.uint16).tofile(self.folder / "train.bin")
        self.check(self.folder / "train.bin", documents, ["--eod", 50256])

    def test_ours_reads_llmc(self):
        for magic, version, kind, eod in ((20240520, 1, numpy.uint16, 50256), (20240801, 7, numpy.uint32, 128001)):
            documents = self.documents(eod + 1, eod)
            tokens = numpy.concatenate(documents).astype(kind)
            header = numpy.zeros(256, dtype=numpy.int32)
            header[:3] = magic, version, len(tokens)
            with open(self.folder / "train.bin", "wb") as file:
                file.write(header.tobytes() + tokens.tobytes())
            self.check(self.folder / "train.bin", documents, ["--eod", eod])

    def test_ours_reads_llmq(self):
        """scripts/tokenize_data.py of llmq: TokenizedDataFileWriter."""
        eod = 151643
        for masked in (False, True):
            documents = self.documents(eod + 1, eod)
            tokens = numpy.concatenate(documents).astype(numpy.int32)
            mask = self.random.integers(0, 2, len(tokens)).astype(bool)
            header = b"BIN.TOK\n" + numpy.array([2, 4, len(tokens), eod + 1, masked], dtype=numpy.int32).tobytes()
            bits = numpy.packbits(mask, bitorder="little").tobytes() if masked else b""
            (self.folder / "train.bin").write_bytes((header + b"*" * 1024)[:1023] + b"\n" + tokens.tobytes() + bits)
            self.check(self.folder / "train.bin", documents, ["--eod", eod])
            seen = tutti("inspect", self.folder / "train.bin")["files"][0]
            self.assertEqual(seen["format"], "llmq")
            self.assertEqual(seen.get("masked_tokens"), int((~mask).sum()) if masked else None)

    def test_numpy_reads_ours(self):
        texts = ["".join(chr(c) for c in self.random.integers(97, 123, n)) for n in self.random.integers(1, 90, 300)]
        (self.folder / "t.txt").write_text("\n\n".join(texts))
        expected = [c for t in texts for c in [*t.encode(), 0]]
        words = ["tokenize", self.folder / "t.txt", "--separator", "\\n\\n", "--append-eod", "--eod", 0]
        tutti(*words, "--format", "nanogpt", "--out", self.folder / "n")
        self.assertEqual(numpy.fromfile(self.folder / "n.bin", dtype=numpy.uint16).tolist(), expected)
        tutti(*words, "--format", "llmc", "--out", self.folder / "l")
        header = numpy.fromfile(self.folder / "l.bin", dtype=numpy.int32, count=256)
        self.assertEqual(header[:4].tolist(), [20240520, 1, len(expected), 0])
        self.assertEqual(numpy.fromfile(self.folder / "l.bin", dtype=numpy.uint16, offset=1024).tolist(), expected)


if __name__ == "__main__":
    TUTTI = sys.argv.pop(1)
    unittest.main()
