"""Writes the vectors of src/tutti/text/testdata: small tokenizers, texts and ids, by the
`tokenizers` and `sentencepiece` packages.

    make_tokenizer_vectors.py FOLDER
"""

import json
import pathlib
import sys

import sentencepiece
from tokenizers import AddedToken, Tokenizer

import test_tokenizers as peer

TEXTS = [
    "", " ", "a", "Hello world", " Hello  world ", "They'll say it's DON'T, we'd'VE 'S 'ſt 'x", "1234567 12 1,234.50 ½²Ⅷ٣",
    "a\n\nb\r\n\r\n  c \n \t d\n", "   \n   x", "\t\tif (x==0) {\r\n\t}  // done...\n", "\u00a0\u2003x\u3000y \u2028z\u0085",
    "naïve cafe\u0301 \u212b \u1e0b\u0323 q\u0307\u0323", "\u1100\u1161\u11a8 각 한글 \uac00\u11a8", "क़ ड़ \u0958 \u0929 தமிழ் கொ ไทยน้ำ",
    "快速的棕色狐狸。\n素早い茶色の狐!ｶﾞ豈", "مَرْحَبًا שָׁלוֹם", "👩‍👩‍👧‍👦👍🏽🇩🇪 ☎️", "\u0000\u0001\u007f\ufffd\ufeff\U0010ffff\U000e0001",
    "<|endoftext|>", "a<|endoftext|> b <|im_start|>user\n<|endoftext", "x  <mask>  y", "<word>s <word> <word>!", "é<norm\u00e9> <norme\u0301>",
    "\u0301\u0300 \u0301a", "----====....\n\n'''\"\"\"", "ABCabc\u01c5\u02b0ªº", "\U00010d40\U00010d4a \U0001e5f0 \u1c89", "a" * 40 + " " * 20 + "\n" * 9 + "!" * 70,
]
ADDED = [AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False), AddedToken("<word>", single_word=True, normalized=False),
         AddedToken("<norm\u00e9>", normalized=True)]


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    corpus = "".join(line for line in peer.scripts().splitlines(keepends=True)) + "".join(t for t in TEXTS if "<" not in t)
    vectors = {}
    for kind in peer.KINDS:
        _, path = peer.build(kind, corpus, folder, vocab=420, extra=ADDED, ignore_merges=kind == "llama3", template=kind == "llama3")
        document = json.loads(path.read_text())
        if kind == "gpt2":  # the old form
            document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
        path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(path))
        vectors[kind] = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in TEXTS]
    corpus_file = folder / "corpus.txt"
    latin = [line for line in peer.scripts().splitlines() if line and max(line) < "\u0500"]
    corpus_file.write_text("\n".join(latin), encoding="utf-8", newline="")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus_file), model_prefix=str(folder / "sentencepiece"), vocab_size=450, model_type="bpe",
        character_coverage=1.0, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        minloglevel=2)
    corpus_file.unlink()
    (folder / "sentencepiece.vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    vectors["sentencepiece"] = [{"text": text, "ids": processor.encode(text), "decoded": processor.decode(processor.encode(text))}
                                for text in TEXTS if "\u0000" not in text]
    lines = [f' "{kind}": [\n' + ",\n".join("  " + json.dumps(v, separators=(",", ":")) for v in of) + "\n ]"
             for kind, of in vectors.items()]
    (folder / "vectors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
