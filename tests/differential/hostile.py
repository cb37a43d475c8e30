"""Hostile strings, a function of their number alone: random pieces that tokenizers are known to disagree on."""
import random
import re
import unicodedata

SEED = 1

# The package normalises by the tables of Unicode 9: a character that came later and that normalisation moves or changes is
# another one to it. Classes are taken from newer tables there, so of the other characters all are fine that are assigned
# for Python.
AGES = "/usr/share/unicode/DerivedAge.txt"
NORMALISED_IN = 9


def later():
    """Code points that are younger than NORMALISED_IN."""
    young = set()
    with open(AGES) as f:
        for line in f:
            m = re.match(r"([0-9A-F]+)(?:\.\.([0-9A-F]+))?\s*; (\d+)\.", line)
            if m and int(m[3]) > NORMALISED_IN:
                young.update(range(int(m[1], 16), int(m[2] or m[1], 16) + 1))
    return young


def moves(ch):
    return unicodedata.combining(ch) or unicodedata.normalize("NFD", ch) != ch


# Characters by general category and by what they do to their neighbours.
LATER = later()
ASSIGNED = [chr(c) for c in range(0x110000)
            if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co") and not (c in LATER and moves(chr(c)))]
BY_CATEGORY = {}
for ch in ASSIGNED:
    BY_CATEGORY.setdefault(unicodedata.category(ch), []).append(ch)
CATEGORIES = sorted(BY_CATEGORY)
MARKS = [ch for ch in ASSIGNED if unicodedata.combining(ch)]
DECOMPOSE = [ch for ch in ASSIGNED if unicodedata.normalize("NFD", ch) != ch]
FOLDS = [ch for ch in ASSIGNED if len(ch.casefold()) > 1 or (ch.casefold() != ch and ch.casefold().isascii())]

SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000\u180e\u200b\u2060\ufeff"
JOINERS = "\u200d\u200c\ufe0f\u20e3\U0001f3fb\u034f\u00ad\u061c\u202e"
EMOJI = "\U0001f469\U0001f680\U0001f468\u2764\U0001f1e9\U0001f1ea\u261d\U0001f9d1"
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'\u017f", "\u2019s", "'", "''s", "'\u212a"]
WORDS = ["the", "The", "don't", "I'll", "caf\u00e9", "na\u00efve", "stra\u00dfe", "\u0130stanbul", "\u0436\u0443\u043a",
         "\u4e2d\u6587", "\u3053\u3093", "\ud55c\uad6d", "\u0e44\u0e17\u0e22", "\u0939\u093f\u0928", "def", "return", "x1y2", "aaaa"]
DIGITS = ["0", "1", "12", "123", "1234", "0x1F", "3.14", "1,000", "\u0661\u0662", "\u2167", "\u00bd", "\u00b2", "\u3007", "\U0001d7ce"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "|>", "<think>", "</think>", "<tool_call>", "<|",
           "<repo_name>", "<file_sep>", "<|im_start|><|im_end|>", "<|im_start|", "im_end|>"]
CODE = ["\n    ", "();\n", "{\r\n", "//", "\t\t", "->", "==", "***", "---", "\n\n\n", "```", "\\u0041", "&amp;", "</s>", "!!!?"]


def word(r):
    return r.choice(WORDS)


def some_category(r):
    chars = BY_CATEGORY[r.choice(CATEGORIES)]
    return "".join(r.choice(chars) for _ in range(r.randint(1, 4)))


def any_character(r):
    return r.choice(ASSIGNED)


def marked(r):
    return r.choice("aeouy\u1100\u4e2d >") + "".join(r.choice(MARKS) for _ in range(r.randint(1, 4)))


def composed(r):
    ch = r.choice(DECOMPOSE)
    return r.choice([ch, unicodedata.normalize("NFD", ch), unicodedata.normalize("NFC", ch)])


def hangul(r):
    return "".join(r.choice(["\u1100", "\u1161", "\u11a8", "\uac00", "\u1175", "\u11c2", "\uac01"]) for _ in range(r.randint(1, 5)))


def spaces(r):
    return "".join(r.choice(SPACES if r.random() < .5 else " \n\r\t") for _ in range(r.randint(1, 6)))


def emoji(r):
    return "".join(r.choice(r.choice([EMOJI, JOINERS])) for _ in range(r.randint(1, 6)))


def run(r):
    return r.choice([" ", "\n", "a", "ab", "1", "\u00e9", "!", "\u4e2d", "\t", "-", "'"]) * r.choice([2, 3, 7, 16, 33, 60])


def noise(r):
    return "".join(chr(r.randint(0, 127)) for _ in range(r.randint(1, 8)))


def pick(things):
    return lambda r: r.choice(things)


PIECES = [word, word, some_category, some_category, any_character, marked, composed, hangul, spaces, spaces, emoji, noise,
          pick(CONTRACTIONS), pick(CONTRACTIONS), pick(DIGITS), pick(DIGITS), pick(CONTROL), pick(CODE), pick(FOLDS)]


def string(n):
    r = random.Random(SEED << 40 | n)
    out = []
    for _ in range(r.randint(1, 10)):
        out.append(run(r) if r.random() < .03 else r.choice(PIECES)(r))
        if r.random() < .3:
            out.append(" ")
    return "".join(out)
