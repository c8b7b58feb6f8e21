#!/usr/bin/env python3
"""Small tokenizers of every kind that is read, with the tokens that Hugging Face's tokenizers and SentencePiece give.

make_tokenizers.py FOLDER writes into FOLDER/NAME what tests/text/tokenizer reads: the tokenizer, and expected.json with texts
and their tokens (of text in base64; "parsed" where it differs from "as_text"). Needs the packages tokenizers and sentencepiece; tests/peer/tokenizers uses the functions, too.
"""

import base64
import json
import pathlib
import sys
import tempfile

import hard_text

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>"]


def byte_level(tokenizers, normalizer, pre_tokenizers, corpus, size, added=()):
    """A tokenizer of bytes, trained on documents."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(pre_tokenizers) if len(pre_tokenizers) > 1 else pre_tokenizers[0]
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


def sentencepiece_like(tokenizers, corpus, size, metaspace):
    """As Llama 2 and Mistral are converted: BPE of characters, bytes for what is not known."""
    blank = "\u2581"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    split = tokenizers.pre_tokenizers.Metaspace(replacement=blank, prepend_scheme="first", split=True)
    tokenizer.pre_tokenizer = split
    special = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)],
                                             show_progress=False, limit_alphabet=300)
    tokenizer.train_from_iterator(corpus, trainer)
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = [token for token in file["added_tokens"] if token["content"] in special]
    normal, decoders = tokenizers.normalizers, tokenizers.decoders
    if not metaspace:
        file["pre_tokenizer"] = None
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(file))
    if metaspace:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=blank, prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normal.Sequence([normal.Prepend(blank), normal.Replace(" ", blank)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(blank, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def json_tokenizers(tokenizers, documents, size):
    """Name and tokenizer of each kind."""
    corpus = [document.decode() for document in documents]
    pre, normal, regex, added = tokenizers.pre_tokenizers, tokenizers.normalizers, tokenizers.Regex, tokenizers.AddedToken
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    llama3 = byte_level(tokenizers, None, [pre.Split(regex(LLAMA3), "isolated"), plain], corpus, size)
    llama3_file = json.loads(llama3.to_str())
    llama3_file["model"]["ignore_merges"] = True
    yield "gpt2_like", byte_level(tokenizers, None, [pre.ByteLevel(add_prefix_space=False)], corpus, size)
    yield "prefix_space", byte_level(tokenizers, None, [pre.ByteLevel(add_prefix_space=True)], corpus, size)
    yield "llama3_like", tokenizers.Tokenizer.from_str(json.dumps(llama3_file))
    yield "qwen_like", byte_level(tokenizers, normal.NFC(), [pre.Split(regex(QWEN2), "isolated"), plain], corpus, size, [
        added("<extra>", special=False, normalized=False), added(" tired", lstrip=True, rstrip=True), added("fox", single_word=True, normalized=True)])
    yield "smollm_like", byte_level(tokenizers, None, [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)], corpus, size)
    for behavior in ["removed", "merged_with_previous", "merged_with_next", "contiguous"]:
        yield "split_" + behavior, byte_level(tokenizers, normal.Sequence([normal.NFC()]), [
            pre.Split(" ", behavior), pre.Split(regex(r"\p{N}+"), behavior, invert=behavior == "removed"), plain], corpus, size)
    yield "llama2_like", sentencepiece_like(tokenizers, corpus, size, metaspace=False)
    yield "mistral_like", sentencepiece_like(tokenizers, corpus, size, metaspace=True)


def sentencepiece_models(sentencepiece, documents, size, rule="nmt_nfkc"):
    """Name and bytes of a model of each kind."""
    usual = set("".join(hard_text.SENTENCES) + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    text = "".join(character for document in documents for character in document.decode() if character in usual or character == "\n")
    lines = [line for line in text.split("\n") if line.strip()][:20000]
    for kind, more in [("bpe", dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False)),
                       ("unigram", dict(byte_fallback=False, normalization_rule_name=rule))]:
        with tempfile.TemporaryDirectory() as folder:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_prefix=folder + "/m", model_type=kind, vocab_size=size, character_coverage=1.0,
                hard_vocab_limit=False, minloglevel=2, num_threads=1, max_sentence_length=100000, user_defined_symbols=["<extra>"], **more)
            yield "sentencepiece_" + kind, pathlib.Path(folder, "m.model").read_bytes()


class Expected:
    """What a tokenizer of Hugging Face's gives for bytes: those that are no text are tokens of their own, and part the text; nothing
    is put before what follows them."""

    def __init__(self, tokenizers, tokenizer):
        self.tokenizer = tokenizer
        self.character = tokenizer.decoder.__class__.__name__ == "Sequence"
        file = json.loads(tokenizer.to_str())
        normalizer, pre = file["normalizer"], file["pre_tokenizer"]
        if normalizer and normalizer["type"] == "Sequence":
            normalizer["normalizers"] = [one for one in normalizer["normalizers"] if one["type"] != "Prepend"]
        if pre and pre["type"] == "Metaspace":
            pre["prepend_scheme"] = "never"
        if pre and pre["type"] == "ByteLevel":
            pre["add_prefix_space"] = False
        self.after_bytes = tokenizers.Tokenizer.from_str(json.dumps(file))
        alphabet = self.byte_names()
        self.byte = [tokenizer.token_to_id(alphabet[byte]) for byte in range(256)]

    def byte_names(self):
        if self.character:
            return [f"<0x{byte:02X}>" for byte in range(256)]
        names, spare = [], 256
        for byte in range(256):
            if 33 <= byte <= 126 or (byte >= 161 and byte != 173):
                names.append(chr(byte))
            else:
                names.append(chr(spare))
                spare += 1
        return names

    def tokens(self, text, parsed):
        self.tokenizer.encode_special_tokens = self.after_bytes.encode_special_tokens = not parsed
        result, run, tokenizer = [], "", self.tokenizer
        for character in text.decode("utf-8", "surrogateescape") + "\udc80":
            if not "\udc80" <= character <= "\udcff":
                run += character
                continue
            result += tokenizer.encode(run, add_special_tokens=False).ids
            result.append(self.byte[ord(character) - 0xdc00])
            run, tokenizer = "", self.after_bytes
        return result[:-1]

    def decoded(self, tokens):
        return self.tokenizer.decode(tokens, skip_special_tokens=False)


def sentencepiece_tokens(processors, text):
    """Of text without special tokens; `processors`: one as the model is, one without a blank before a text."""
    processor, run, result = processors[0], "", []
    for character in text.decode("utf-8", "surrogateescape") + "\udc80":
        if not "\udc80" <= character <= "\udcff":
            run += character
            continue
        result += processor.encode(run)
        byte = processor.piece_to_id(f"<0x{ord(character) - 0xdc00:02X}>")
        result.append(byte)
        run, processor = "", processors[1]
    return result[:-1]


def sentencepiece_processors(sentencepiece, model):
    return [sentencepiece.SentencePieceProcessor(model_proto=model), sentencepiece.SentencePieceProcessor(model_proto=model + b"\x1a\x02\x18\x00")]


def write(folder, name, file, content, expected):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / file).write_bytes(content)
    cases = []
    for text, as_text, parsed in expected:
        case = {"text": base64.b64encode(text).decode(), "as_text": as_text}
        if parsed is not None and parsed != as_text:
            case["parsed"] = parsed
        cases.append(json.dumps(case, separators=(",", ":")))
    (folder / name / "expected.json").write_text("[\n" + ",\n".join(cases) + "\n]\n")


def main():
    import sentencepiece
    import tokenizers

    folder = pathlib.Path(sys.argv[1])
    valid, invalid = hard_text.documents(6000, 1)
    corpus, _ = hard_text.documents(200000, 2)
    texts = [text[:2500] if text[:1] in b" a=" else text for text in valid] + invalid[:3]
    texts = [text for text in texts if len(text) < 3000]
    for name, tokenizer in json_tokenizers(tokenizers, corpus, 500):
        expected = Expected(tokenizers, tokenizer)
        write(folder, name, "tokenizer.json", tokenizer.to_str().encode(), [(text, expected.tokens(text, False), expected.tokens(text, True)) for text in texts])
    for name, model in sentencepiece_models(sentencepiece, corpus, 800, rule="identity"):
        processors = sentencepiece_processors(sentencepiece, model)
        cases = [(text, sentencepiece_tokens(processors, text)) for text in texts]
        write(folder, name, "tokenizer.model", model, [(text, tokens, None) for text, tokens in cases])


if __name__ == "__main__":
    main()
