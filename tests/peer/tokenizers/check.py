#!/usr/bin/env python3
"""Spillway's tokenizers against Hugging Face's tokenizers and SentencePiece: check.py --tokenize PROGRAM --program SPILLWAY

Tokenizers of every kind that is read are trained here, on hard text (tests/reference/hard_text.py), and asked for the tokens of
5 MB of other hard text, of every character that Unicode 14 has assigned, and of documents with bytes that are no text. All tokens
and all that they decode to must be equal. Tokenizers that `spillway tokenizer train` has made are loaded by tokenizers and
transformers, and must give the same tokens there. With SPILLWAY_GPT2=FOLDER, a folder with GPT-2's encoder.json and vocab.bpe,
also GPT-2's own. Prints the speed of both on English text, on one core each and on all.

Exit code 77: skipped, with the reason: a package is missing, or Python knows a later Unicode. SPILLWAY_TRANSFORMERS names
another python3 that has the packages.
"""

import argparse
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "reference"))

import hard_text  # noqa: E402
import make_tokenizers  # noqa: E402

TRAIN_SEED, TEST_SEED = 11, 12


class Peer:
    def __init__(self, tokenize, folder):
        self.tokenize, self.folder, self.failed = tokenize, folder, []

    def ours(self, path, documents, threads=1):
        """For each document twice (special tokens as text, parsed): tokens and bytes; and seconds of encoding."""
        source, result = self.folder / "documents", self.folder / "tokens"
        source.write_bytes(b"".join(struct.pack("I", len(one)) + one for one in documents))
        done = subprocess.run([self.tokenize, path, source, result, str(threads)], capture_output=True, text=True, timeout=1200)
        if done.returncode != 0:
            raise RuntimeError(f"{path}: {done.stderr}")
        data, at, answers = result.read_bytes(), 0, []
        for _ in documents:
            both = []
            for _ in range(2):
                count, = struct.unpack_from("I", data, at)
                tokens = list(struct.unpack_from(f"{count}i", data, at + 4))
                at += 4 + 4 * count
                length, = struct.unpack_from("I", data, at)
                both.append((tokens, data[at + 4:at + 4 + length]))
                at += 4 + length
            answers.append(both)
        return answers, float(done.stdout)

    def different(self, name, document, ours, theirs, what):
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        self.failed.append(f"{name}: {what} of {document[:60]!r}: at {at}: {ours[at:at + 8]!r}, expected {theirs[at:at + 8]!r}")

    def compare(self, name, path, documents, invalid, tokens_of, decoded_of, exact):
        """`exact`: tokens decode to the bytes that they were made of."""
        answers, _ = self.ours(path, documents + invalid)
        total = bytes_ = differences = 0
        for i, (document, both) in enumerate(zip(documents + invalid, answers)):
            expected = None
            for parsed, (tokens, text) in enumerate(both):
                if expected is None or b"<" in document:  # else no name of a special token is in it
                    expected = tokens_of(document, bool(parsed))
                if expected is None:
                    continue
                total += len(tokens)
                bytes_ += 0 if parsed else len(document)
                if tokens != expected:
                    differences += 1
                    self.different(name, document, tokens, expected, "tokens")
                elif i < len(documents) and text.decode("utf-8", "replace") != decoded_of(expected):
                    differences += 1
                    self.different(name, document, text.decode("utf-8", "replace"), decoded_of(expected), "text")
                elif exact and not parsed and text != document:
                    differences += 1
                    self.different(name, document, text, document, "bytes")
        print(f"{name:28} {bytes_ / 1e6:6.1f} MB, {total:9} tokens, {differences} differences", flush=True)


def speed(peer, name, path, documents):
    size = sum(map(len, documents)) / 1e6
    texts = [one.decode() for one in documents]
    cores = os.cpu_count()
    for threads in (1, cores):
        _, ours = peer.ours(path, documents, threads)
        theirs = timed(path, texts, threads)
        print(f"{name:28} {threads} threads: {size / ours / threads:6.1f} MB/s a core, tokenizers {size / theirs / threads:6.1f}: "
              f"{theirs / ours:.1f} times as fast", flush=True)


def timed(path, texts, threads):
    """In a process of its own: how many threads tokenizers uses is settled once. The fastest of three rounds, as ours."""
    program = """
import json, sys, time, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
texts = json.load(sys.stdin)
best = 1e9
for _ in range(3):
    begin = time.perf_counter()
    tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    best = min(best, time.perf_counter() - begin)
print(best)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], input=json.dumps(texts), capture_output=True, text=True, check=True,
                          env={**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"})
    return float(done.stdout)


def english():
    """The documents of this repository, as often as makes some megabytes."""
    documents = [path.read_bytes() for path in sorted(REPOSITORY.glob("docs/*.md")) + sorted(REPOSITORY.glob("*/**/*.hpp"))
                 if "build" not in path.parts]
    return documents * (1 + 8_000_000 // sum(map(len, documents)))


def check_trained(peer, program, documents, expected, tokenizers, transformers):
    """What `spillway tokenizer train` writes is loaded by tokenizers and transformers."""
    source = peer.folder / "corpus"
    source.mkdir()
    for i, document in enumerate(documents):
        (source / f"{i}.txt").write_bytes(document)
    for pattern in ["gpt2", "llama3", "qwen2"]:
        out = peer.folder / f"trained-{pattern}"
        done = subprocess.run([program, "tokenizer", "train", source, "--json", "--vocabulary", "3000", "--pattern", pattern, "--out", out,
                               "--special", "<|im_start|>", "--special", "<|im_end|>"], capture_output=True, text=True)
        if done.returncode != 0:
            peer.failed.append(f"trained by Spillway, {pattern}: {done.stderr}")
            continue
        tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
        reference = make_tokenizers.Expected(tokenizers, tokenizer)
        valid, invalid = expected
        peer.compare(f"trained by Spillway, {pattern}", out, valid, invalid, reference.tokens, reference.decoded, pattern != "qwen2")
        fast = transformers.AutoTokenizer.from_pretrained(out)
        text = valid[-1].decode() + "Hello world<|im_end|>"
        if fast.encode(text, add_special_tokens=False) != peer.ours(out, [text.encode()])[0][0][1][0]:
            peer.failed.append(f"trained by Spillway, {pattern}: transformers gives other tokens")
        if fast.eos_token != "<|endoftext|>" or fast.pad_token is None:
            peer.failed.append(f"trained by Spillway, {pattern}: transformers knows eos {fast.eos_token}, pad {fast.pad_token}")


def check_training(peer, program, documents, tokenizers):
    """tokenizers' own training makes the same vocabulary and merges of the same documents, which are English: files with control
    characters are no text for Spillway."""
    source, out = peer.folder / "english", peer.folder / "trained-english"
    source.mkdir()
    for i, document in enumerate(documents):
        (source / f"{i}.txt").write_bytes(document)
    subprocess.run([program, "tokenizer", "train", source, "--vocabulary", "3000", "--out", out, "--special", "<|im_start|>",
                    "--special", "<|im_end|>", "--json"], capture_output=True, check=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=3000, min_frequency=2, special_tokens=special, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = [piece for document in documents for piece in re.split("|".join(map(re.escape, special)), document.decode())]
    tokenizer.train_from_iterator(pieces, trainer)
    ours, theirs = json.loads((out / "tokenizer.json").read_text())["model"], json.loads(tokenizer.to_str())["model"]
    if ours["vocab"] != theirs["vocab"] or ours["merges"] != theirs["merges"]:
        at = next((i for i, (a, b) in enumerate(zip(ours["merges"], theirs["merges"])) if a != b), None)
        peer.failed.append(f"training: other merges than those of tokenizers, first at {at}")
    else:
        print(f"training: {len(ours['merges'])} merges as tokenizers trains them", flush=True)


def check_given(peer, corpus, texts, valid, invalid, measured, sentencepiece, tokenizers):
    """Tokenizers that the peers have trained."""
    folder = peer.folder
    for name, tokenizer in make_tokenizers.json_tokenizers(tokenizers, corpus + texts[:40], 6000):
        path = folder / name / "tokenizer.json"
        path.parent.mkdir()
        tokenizer.save(str(path))
        expected = make_tokenizers.Expected(tokenizers, tokenizer)
        exact = name in ("gpt2_like", "llama3_like", "smollm_like")
        part = len(valid) // 10 if name.startswith("split_") else len(valid)
        peer.compare(name, path, valid[:part], invalid, expected.tokens, expected.decoded, exact)
        if name in ("gpt2_like", "llama3_like", "mistral_like") and measured:
            speed(peer, name, path, texts)
    for name, model in make_tokenizers.sentencepiece_models(sentencepiece, corpus, 6000):
        if "unigram" in name and not sentencepiece.__version__.startswith("0.1."):
            print(f"{name}: SentencePiece {sentencepiece.__version__} chooses otherwise than 0.1.97, the library of Debian 12, among "
                  "segmentations that are equally good: pip install sentencepiece==0.1.97 compares them")
            continue
        path = folder / f"{name}.model"
        path.write_bytes(model)
        processors = make_tokenizers.sentencepiece_processors(sentencepiece, model)
        peer.compare(name, path, valid, invalid if "bpe" in name else [], lambda text, parsed: None if parsed else
                     make_tokenizers.sentencepiece_tokens(processors, text), processors[0].decode, False)
    if os.environ.get("SPILLWAY_GPT2"):
        source = pathlib.Path(os.environ["SPILLWAY_GPT2"])
        gpt2 = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(source / "encoder.json"), str(source / "vocab.bpe")))
        gpt2.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        gpt2.decoder = tokenizers.decoders.ByteLevel()
        gpt2.add_special_tokens(["<|endoftext|>"])
        expected = make_tokenizers.Expected(tokenizers, gpt2)
        peer.compare("GPT-2's own", source, valid, invalid, expected.tokens, expected.decoded, True)
        gpt2.save(str(folder / "gpt2.json"))
        if measured:
            speed(peer, "GPT-2's own", folder / "gpt2.json", texts)
    else:
        print("GPT-2's own: SPILLWAY_GPT2 does not name a folder with its files")


def check(arguments):
    import sentencepiece
    import tokenizers
    import transformers

    corpus, _ = hard_text.documents(1_500_000, TRAIN_SEED)
    valid, invalid = hard_text.documents(arguments.bytes, TEST_SEED)
    valid += hard_text.every_character()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        peer = Peer(arguments.tokenize, folder)
        texts = english()
        if not arguments.only_trained:
            check_given(peer, corpus, texts, valid, invalid, not arguments.no_speed, sentencepiece, tokenizers)
        if arguments.program:
            check_training(peer, arguments.program, texts[:300], tokenizers)
            check_trained(peer, arguments.program, corpus[:400] + texts[:100], (valid, invalid), tokenizers, transformers)
        for line in peer.failed[:40]:
            print("FAILED:", line)
        if peer.failed:
            sys.exit(f"{len(peer.failed)} differences")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenize", required=True)
    parser.add_argument("--program")
    parser.add_argument("--bytes", type=int, default=5_000_000)
    parser.add_argument("--no-speed", action="store_true", help="compare tokens only, where the machine is busy")
    parser.add_argument("--only-trained", action="store_true", help="only tokenizers that Spillway has trained")
    arguments = parser.parse_args()
    other = os.environ.get("SPILLWAY_TRANSFORMERS")
    if other and pathlib.Path(sys.executable).absolute() != pathlib.Path(other).absolute():
        os.execv(other, [other, *sys.argv])
    try:
        import sentencepiece, tokenizers, transformers  # noqa: E401, F401
        hard_text.assigned()
    except (ImportError, RuntimeError) as error:
        print(f"skipped: {error} (pip install tokenizers transformers sentencepiece)")
        sys.exit(77)
    check(arguments)


if __name__ == "__main__":
    main()
