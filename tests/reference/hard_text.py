"""Text that tokenizers disagree about: documents(bytes, seed).

All planes of Unicode, kinds of white space, emoji with joiners, code, CJK, combining marks that are not composed, text from
right to left, control characters, names of special tokens and parts of them, long words; bytes that are not UTF-8 in documents
of their own. The same documents for the same arguments.

Characters that Unicode 14 has not assigned are left out: PCRE2 10.42, by which Spillway cuts, knows the classes of Unicode
14.0, and Hugging Face's tokenizers those of a later version, in which some of them are letters.
"""

import random
import unicodedata

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2003\u2007\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
NOT_WHITE_SPACE = "\u180e\u200b\u200c\u200d\u2060\ufeff"
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇯🇵", "1️⃣", "❤️", "🧑🏿‍🚀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☺", "☺︎", "🤦🏼‍♂️"]
SENTENCES = [
    "The quick brown fox can't jump; it's tired, they'll say. WE'VE SEEN IT, I'd SAID'S 'ſ 'Re", "Größe, Ärger, naïve café, Å, ﬁne, ﬀ, ſ, K, ı, İ",
    "Съешь же ещё этих мягких французских булок", "敏捷的棕色狐狸跳过了懒狗。日本語のテキスト、カタカナ、ｶﾀｶﾅ", "다람쥐 헌 쳇바퀴에 타고파",
    "\u1103\u1161\u1105\u1161\u11b7", "العربية من اليمين إلى اليسار ١٢٣ \u200fمرحبا\u200e", "עברית \u202bשלום\u202c", "देवनागरी लिपि १२३", "ภาษาไทยไม่มีช่องว่าง",
    "Việt Nam, tiếng Việt", "ἀρχὴ ἥμισυ παντός", "x = y² + ½·z₃ − ⅷ", "1234567890 12,345.67 0x1F 1e-9 ١٢٣٤ Ⅷ ㊿ 𝟙𝟚𝟛 ௧௨",
    "<|endoftext|>", "<|endof", "<|im_start|>user\nhi<|im_end|>", "<s>[INST] hi [/INST]</s>", "<|begin_of_text|>", "<extra> token", "▁▁meta▁space",
    "<0x0A>", "<unk>", "[PAD]", " <mask> ", "!!!!!!", "......", "-----", "=====", "/* ... */", "https://example.org/a?b=c&d=%20#e",
]
CODE = [
    "def f(x: int) -> str:\n    return f\"{x!r:>{10}}\"  # note\n", "for (size_t i = 0; i < n; ++i) {\n\t\tv[i] += w[i];\n\t}\n",
    "<div class=\"a b\">\r\n  <p>text</p>\r\n</div>\r\n", "SELECT * FROM t WHERE a='it''s';\n\n\n", "x\t=\t1\n\n\n\n    \n  y", "\\begin{align} a &= b \\\\ \\end{align}",
]


def assigned():
    """Characters by plane and kind."""
    if tuple(map(int, unicodedata.unidata_version.split("."))) > (14, 0, 0):
        raise RuntimeError(f"this Python knows Unicode {unicodedata.unidata_version}, and cannot tell what 14.0 had assigned")
    planes = {}
    marks = []
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category in ("Cn", "Cs"):
            continue
        if category.startswith("M"):
            marks.append(chr(code))
        planes.setdefault((code >> 16, category), []).append(chr(code))
    return list(planes.values()), marks


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.classes, self.marks = assigned()

    def word(self):
        r = self.random
        return "".join(r.choice("etaoinshrdluETAOIN") for _ in range(r.randint(1, 9)))

    def piece(self):
        r = self.random
        kind = r.randrange(14)
        if kind == 0:
            return "".join(r.choice(r.choice(self.classes)) for _ in range(r.randint(1, 30)))
        if kind == 1:
            return "".join(r.choice(WHITE_SPACE) for _ in range(r.randint(1, 6)))
        if kind == 2:
            return "".join(r.choice(" \t\n\r") for _ in range(r.randint(1, 9)))
        if kind == 3:
            return r.choice(EMOJI) * r.randint(1, 3)
        if kind == 4:
            return r.choice(CODE)
        if kind == 5:
            return "".join(self.word()[:2] + "".join(r.choice(self.marks[:400]) for _ in range(r.randint(1, 3))) for _ in range(4))
        if kind == 6:
            return unicodedata.normalize("NFD", r.choice(SENTENCES))
        if kind == 7:
            return "".join(chr(r.randrange(32)) for _ in range(3)) + r.choice(NOT_WHITE_SPACE)
        if kind == 8:
            return str(r.randrange(10 ** r.randint(1, 12)))
        if kind == 9:
            return "'" + r.choice(["s", "S", "t", "re", "VE", "m", "ll", "Ll", "d", "ſ", "x"])
        if kind in (10, 11):
            return r.choice(SENTENCES)
        return " ".join(self.word() for _ in range(r.randint(3, 40)))

    def document(self, size):
        parts = []
        length = 0
        while length < size:
            part = self.piece()
            if self.random.randrange(3) == 0:
                part += " "
            parts.append(part)
            length += len(part.encode())
        return "".join(parts).encode()

    def invalid_document(self, size):
        """Without names of special tokens: what follows one is another matter than what follows bytes."""
        r = self.random
        text = bytearray(self.document(size).replace(b"<", b"(").replace(b"[", b"("))
        for _ in range(1 + size // 300):
            at = r.randrange(len(text) + 1)
            text[at:at] = r.choice([b"\xff", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80\x80\x80", b"\xf0\x9f\x98", b"\xfe\xff"])
        return bytes(text)


def documents(size, seed):
    """About `size` bytes of valid documents, and some invalid ones."""
    maker = Maker(seed)
    result = [b"", b" ", b"\n", b"a", b"  a", b"\xc3\xa9"]
    total = 0
    while total < size:
        one = maker.document(maker.random.choice([20, 200, 2000, 20000]))
        total += len(one)
        result.append(one)
    invalid = [maker.invalid_document(maker.random.choice([20, 300, 3000])) for _ in range(max(5, size // 20000))]
    long_words = [b"a" * min(20000, size), "ä漢😀".encode() * min(1000, size // 10), b" " * min(5000, size), b"=" * min(5000, size)]
    return result + long_words, invalid


def every_character():
    """One document for each 256 characters, each in a few surroundings."""
    classes, _ = assigned()
    characters = sorted(character for kind in classes for character in kind)
    texts = []
    for at in range(0, len(characters), 256):
        texts.append("".join(f"a{c} {c}1'{c}\n" for c in characters[at:at + 256]).encode())
    return texts
