"""Token ids against the `tokenizers` package, on files that it wrote, and sentencepiece against its own package.

    test_tokenizers.py PEER_TOKENIZE TUTTI [TestCase ...]

Run by ctest (label peer). Needs tokenizers and sentencepiece, which scripts/test.sh --peer installs.
"""

import itertools
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

PEER, TUTTI = None, None
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+[", r"[^\s\p{L}\p{M}\p{N}]+[")
KINDS = ("gpt2", "llama3", "qwen", "qwen35")

def scripts():
    """Sentences in 27 scripts, emoji, code, and characters that are easy to get wrong."""
    with open(pathlib.Path(__file__).resolve().parent / "scripts.txt", encoding="utf-8", newline="") as file:
        return file.read()


def mixed_text(characters, seed):
    """Sentences of all scripts in random order and cut at random places, until there are so many characters."""
    source = random.Random(seed)
    lines = scripts().splitlines(keepends=True)
    extras = ["\t", "\r\n", "\n\n\n", "   ", " \n ", "\r", "'s", "'LL", "'ſ", "'S", "12345678", "½", "\u00a0", "\u0300", "e\u0301\u0323",
              "\u1100\u1161\u11a8", "\u212b", "\ufb01", "\u0958", "\u3000", "\u0085", "\u200d", "\u2028", "--", "...\n"]
    parts, total = [], 0
    while total < characters:
        line = source.choice(lines)
        if source.random() < 0.5:
            begin = source.randrange(len(line))
            line = line[begin:begin + source.randrange(1, 40)]
        if source.random() < 0.3:
            line += source.choice(extras) * source.choice([1, 1, 1, 2, 5])
        parts.append(line)
        total += len(line)
    return "".join(parts)


def fuzzed(documents, seed):
    """Random code points of all planes and kinds; runs; text that is nearly right."""
    source = random.Random(seed)
    every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    marks = [c for c in every if unicodedata.combining(chr(c))]
    spaces = [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0x200B, 0xFEFF]
    ascii_letters = [ord(c) for c in "aAsStTrReEvVlLmMdDxyz'’"]
    def character():
        kind = source.randrange(12)
        if kind == 0: return source.choice(every)
        if kind == 1: return source.randrange(0x20)
        if kind == 2: return source.choice(marks)
        if kind in (3, 4): return source.choice(spaces)
        if kind == 5: return source.randrange(0x30, 0x3A)
        if kind == 6: return source.choice([0x1F468, 0x200D, 0x1F3FD, 0xFE0F, 0x1F1E9, 0x20E3])
        if kind == 7: return source.randrange(0x1100, 0x1200)
        if kind == 8: return source.randrange(0x80, 0x3000)
        return source.choice(ascii_letters)
    result = []
    for _ in range(documents):
        text = "".join(chr(character()) * source.choice([1, 1, 1, 1, 2, 3, 9]) for _ in range(source.randrange(60)))
        result.append(text)
    for c in (" ", "\n", "\r\n", "7", "a", "A\u0301", "!", "\t", "あ", "\u0300", "'s", " x"):
        result += [c * n for n in (1, 2, 3, 31, 63, 64, 65, 1000, 20000)]
    return result


def build(kind, corpus, folder, vocab=3000, specials=("<|endoftext|>", "<|im_start|>"), ignore_merges=False,
          prefix_space=False, template=False, extra=(), min_frequency=2):
    """A tokenizer.json made by the package: trained on the corpus with the pre-tokenizer of `kind`."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    else:
        pattern = {"llama3": LLAMA3, "qwen": QWEN, "qwen35": QWEN35}[kind]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if kind.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(specials), show_progress=False,
                                  min_frequency=min_frequency,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([corpus], trainer)
    if extra:
        tokenizer.add_tokens(list(extra))
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|endoftext|>", special_tokens=[("<|im_start|>", 1), ("<|endoftext|>", 0)])
    path = pathlib.Path(folder) / f"{kind}.json"
    tokenizer.save(str(path))
    return tokenizer, path


def frame(parts):
    return b"".join(struct.pack("<I", len(p)) + p for p in parts)


def frames(data, width):
    at = 0
    while at < len(data):
        count, = struct.unpack_from("<I", data, at)
        yield data[at + 4:at + 4 + count * width]
        at += 4 + count * width


def ids_of(data):
    return [list(struct.unpack(f"<{len(f) // 4}i", f)) for f in frames(data, 4)]


def peer(path, mode, data, *arguments):
    result = subprocess.run([PEER, path, mode, *map(str, arguments)], input=data, capture_output=True)
    if result.returncode != 0:
        raise RuntimeError(f"peer_tokenize {mode}: exit code {result.returncode}\n{result.stderr.decode()}")
    return result.stdout


class Ids(unittest.TestCase):
    """Ids, one by one, over texts that try every rule."""

    def compare(self, tokenizer, path, texts, threads=2):
        encoded = [t.encode() for t in texts]
        ours = ids_of(peer(path, "encode", frame(encoded), threads))
        self.assertEqual(len(ours), len(texts))
        for text, mine in zip(texts, ours):
            theirs = tokenizer.encode(text, add_special_tokens=False).ids
            if mine != theirs:
                at = next(i for i, (a, b) in enumerate(itertools.zip_longest(mine, theirs)) if a != b)
                self.fail(f"{path}: token {at} of {text[:2000]!r}: ours {mine[at - 3:at + 5]}, theirs "
                          f"{theirs[at - 3:at + 5]} = {[tokenizer.id_to_token(i) for i in theirs[at - 3:at + 5]]}")
        return encoded, ours

    def test_a_million_characters_of_mixed_scripts(self):
        with tempfile.TemporaryDirectory() as folder:
            text = mixed_text(1_000_000, 1)
            for kind in KINDS:
                with self.subTest(kind):
                    tokenizer, path = build(kind, text[:200_000], folder)
                    encoded, ours = self.compare(tokenizer, path, [text])
                    whole = ids_of(peer(path, "text", encoded[0], 2))
                    self.assertEqual(whole, ours, "cut and encoded by pieces")

    def test_fuzzed_unicode(self):
        with tempfile.TemporaryDirectory() as folder:
            corpus = mixed_text(100_000, 2)
            texts = fuzzed(6000, 3)
            for kind in KINDS:
                with self.subTest(kind):
                    tokenizer, path = build(kind, corpus + "".join(texts[:2000]), folder)
                    encoded, ours = self.compare(tokenizer, path, texts)
                    self.assertEqual(ids_of(peer(path, "encode", frame(encoded), 1)), ours, "one thread")
                    decoded = list(frames(peer(path, "decode", b"".join(
                        struct.pack(f"<I{len(i)}i", len(i), *i) for i in ours)), 1))
                    if kind in ("gpt2", "llama3"):
                        self.assertEqual(decoded, encoded)
                    else:  # after NFC, which the package says
                        nfc = normalizers.NFC()
                        self.assertEqual(decoded, [nfc.normalize_str(t).encode() for t in texts])
                    for n in range(2000):  # pieces of one text
                        text = "".join(texts[n:n + 5])
                        if n % 100 == 0:
                            self.assertEqual(ids_of(peer(path, "text", text.encode(), 2)),
                                             [tokenizer.encode(text, add_special_tokens=False).ids])

    def test_every_code_point_in_context(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = []
            for first in range(0, 0x110000, 256):
                codes = [c for c in range(first, first + 256) if not 0xD800 <= c < 0xE000]
                texts.append("".join(f"a{chr(c)}b {chr(c)}1{chr(c)}{chr(c)} '{chr(c)}\n\u0315\u0300" for c in codes))
            texts = [t for t in texts if t]
            corpus = mixed_text(60_000, 4)
            for kind in KINDS:
                with self.subTest(kind):
                    tokenizer, path = build(kind, corpus, folder, vocab=600)
                    self.compare(tokenizer, path, texts)

    def test_added_tokens(self):
        flags = [dict(zip(("single_word", "lstrip", "rstrip", "normalized"), bits))
                 for bits in itertools.product([False, True], repeat=4)]
        extra = [AddedToken(f"<x{i}>", **f) for i, f in enumerate(flags)]
        extra += [AddedToken(f"word{i}", **f) for i, f in enumerate(flags)]
        extra += [AddedToken("<a", normalized=False), AddedToken("<ab>", normalized=False), AddedToken("ab>c", normalized=False),
                  AddedToken("e\u0301\u0323", normalized=True), AddedToken("\u212b", normalized=False),
                  AddedToken("two words", normalized=False), AddedToken(" lead", normalized=False, rstrip=True),
                  AddedToken("the", normalized=True)]
        source = random.Random(5)
        pieces = [t.content for t in extra] + ["<|endoftext|>", "<|im_start|>", " ", "  ", "\n", "\u00a0", "a", "Z9", "_", "é", "·", "\u0301",
                                               "the", "e\u0323\u0301", "\u00c5", "<", "<|", "word", "-", "\u200d", "Ⓐ", "²", "ab>"]
        texts = ["".join(source.choices(pieces, k=source.randrange(12))) for _ in range(20_000)]
        with tempfile.TemporaryDirectory() as folder:
            for kind in KINDS:
                with self.subTest(kind):
                    tokenizer, path = build(kind, mixed_text(60_000, 6), folder, vocab=800, extra=extra)
                    self.compare(tokenizer, path, texts)

    def test_options(self):
        corpus, texts = mixed_text(100_000, 7), fuzzed(1500, 8) + [mixed_text(50_000, 9), "", " ", "a", " a"]
        with tempfile.TemporaryDirectory() as folder:
            for kind, options in (("gpt2", dict(prefix_space=True)), ("llama3", dict(ignore_merges=True)),
                                  ("llama3", dict(template=True)), ("qwen", dict(vocab=259))):
                with self.subTest(f"{kind} {options}"):
                    tokenizer, path = build(kind, corpus, folder, **options)
                    self.compare(tokenizer, path, texts)
                    self.assertEqual(ids_of(peer(path, "text", texts[-5].encode(), 2)),
                                     [tokenizer.encode(texts[-5], add_special_tokens=False).ids])

    def test_merges_as_strings_and_whole_words_first(self):
        """The old form of merges, and ignore_merges with a vocabulary that the merges do not reach."""
        corpus, texts = mixed_text(60_000, 10), fuzzed(500, 11) + [mixed_text(20_000, 12)]
        with tempfile.TemporaryDirectory() as folder:
            _, path = build("llama3", corpus, folder, ignore_merges=True)
            document = json.loads(path.read_text())
            model = document["model"]
            dropped = model["merges"][::3]
            model["merges"] = [" ".join(m) for m in model["merges"] if m not in dropped]
            path.write_text(json.dumps(document))
            self.compare(Tokenizer.from_file(str(path)), path, texts)


class Training(unittest.TestCase):
    """`tutti data train-tokenizer`: the package loads the file, encodes alike, and learns the same."""

    def test_learns_what_the_package_learns(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            corpus = mixed_text(400_000, 13).replace("\0", "")  # data files with a zero byte are refused
            (folder / "corpus.txt").write_text(corpus, encoding="utf-8", newline="")
            for kind, vocab, least in (("gpt2", 3000, 2), ("llama3", 3000, 2), ("qwen", 3000, 2), ("gpt2", 20_000, 1),
                                       ("qwen", 20_000, 3)):
                with self.subTest(f"{kind} {vocab} {least}"):
                    ours = folder / f"ours-{kind}.json"
                    subprocess.run([TUTTI, "data", "train-tokenizer", folder / "corpus.txt", "--vocab", str(vocab), "--out", ours,
                                    "--pretokenizer", kind, "--special", "<|endoftext|>", "--special", "<|im_start|>",
                                    "--min-frequency", str(least)], check=True, capture_output=True)
                    theirs, _ = build(kind, corpus, folder, vocab=vocab, min_frequency=least)
                    trained = Tokenizer.from_file(str(ours))
                    mine, other = json.loads(trained.to_str()), json.loads(theirs.to_str())
                    for part in ("added_tokens", "normalizer", "pre_tokenizer", "model"):
                        self.assertTrue(mine[part] == other[part], f"{part} differs")  # a diff would be megabytes
                    Ids.compare(self, trained, ours, fuzzed(500, 14) + [mixed_text(100_000, 15)])


class Sentencepiece(unittest.TestCase):
    def test_ids_and_text(self):
        import sentencepiece
        fuzz = [t for t in fuzzed(1500, 16) if "\u0000" not in t] + [mixed_text(20_000, 17), "", " ", "a b", "  two  spaces "]
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "corpus.txt").write_text(mixed_text(200_000, 18), encoding="utf-8", newline="")
            # Equally good segmentations of one character in a row are chosen differently by versions of the library.
            plain = scripts().splitlines()
            identity = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
            for name, kind, texts, options in (
                    ("bpe", "bpe", fuzz, dict(identity, byte_fallback=True)),
                    ("unigram", "unigram", plain, {}),
                    ("bpe with rules", "bpe", plain, {}),
                    ("bpe with unknown characters", "bpe", fuzz, identity),
                    ("bpe without a prefix", "bpe", fuzz, dict(identity, add_dummy_prefix=False)),
                    ("bpe with spaces inside pieces", "bpe", fuzz, dict(identity, byte_fallback=True, split_by_whitespace=False)),
                    ("bpe with symbols", "bpe", fuzz, dict(identity, byte_fallback=True, user_defined_symbols=["<x y>", "zz"])),
                    ("bpe, no prefix but trimmed", "bpe", plain, dict(add_dummy_prefix=False)),
                    ("bpe, spaces behind words", "bpe", fuzz, dict(identity, treat_whitespace_as_suffix=True))):
                with self.subTest(name):
                    sentencepiece.SentencePieceTrainer.train(
                        input=str(folder / "corpus.txt"), model_prefix=str(folder / name), vocab_size=1500, model_type=kind,
                        character_coverage=0.98, minloglevel=2, **options)
                    path = folder / f"{name}.model"
                    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
                    ours = ids_of(peer(path, "encode", frame([t.encode() for t in texts]), 2))
                    self.assertEqual(ours, [processor.encode(t) for t in texts])
                    long = "\n".join(texts) * 3  # cut into pieces for two threads
                    self.assertTrue(ids_of(peer(path, "text", long.encode(), 2)) == [processor.encode(long)])
                    if name in ("bpe, spaces behind words", "bpe, no prefix but trimmed"):
                        continue
                    decoded = list(frames(peer(path, "decode", b"".join(
                        struct.pack(f"<I{len(i)}i", len(i), *i) for i in ours)), 1))
                    for text, mine, ids in zip(texts, decoded, ours):
                        self.assertEqual(mine.decode(errors="replace"), processor.decode(ids), repr(text))


if __name__ == "__main__":
    PEER, TUTTI = sys.argv[1:3]
    print(f"tokenizers {tokenizers.__version__}, Python's Unicode {unicodedata.unidata_version}")
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
