"""The tokenizer of a GGUF file: its keys, as the package `tokenizers` wants them; and the same file under another
pre-tokenizer, with merges that tell where it cuts."""
import struct

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.number("I"), self.number("Q")
            if inner == 8:
                return [self.text() for _ in range(n)]
            if inner == 5:
                self.at += 4 * n
                return list(struct.unpack_from("<%di" % n, self.data, self.at - 4 * n))
            self.at += SCALARS[inner] * n
            return None
        self.at += SCALARS[kind]
        return None


def read(path):
    """Keys by name, and where each value lies; the number of tensors, and where their table begins and ends."""
    with open(path, "rb") as f:
        r = Reader(f.read())
    r.at = 8
    n_tensors, n_keys = r.number("Q"), r.number("Q")
    keys, places = {}, {}
    for _ in range(n_keys):
        name, kind = r.text().decode(), r.number("I")
        begin = r.at
        keys[name] = r.value(kind)
        places[name] = (begin, r.at)
    for _ in range(n_tensors):
        r.text()
        n_dims = r.number("I")
        r.at += 8 * n_dims + 12
    return r.data, keys, places, r.at


# Merges over the places where pre-tokenizers cut: a cut that is missing or too many shows in the ids.
CROSSING = ["1 2", "12 3", "2 3", "123 4", "0 0", "00 0", "1 1", "11 1", "\u0120 1", "1 a", "a 1", "3 .", ". 1", "! \u010a",
            "\u010a !", "\u0120 !", "! a", "a !", "' x", "\u010a a", "\u010d a", "\u0120 \u010a", "\u010a \u0120", "\u0109 a",
            "\u010a 1", "1 \u010a", "< |", "| im"]


def cross(tokens, types, merges):
    """Puts these merges and their tokens in the place of the last ones; returns the new lists."""
    tokens, merges = list(tokens), list(merges)
    ids = {t: i for i, t in enumerate(tokens)}
    at = len(merges)
    for merge in CROSSING:
        left, right = merge.encode().split(b" ")
        if left + right in ids or left not in ids or right not in ids:
            continue
        at -= 1
        last = merges[at].replace(b" ", b"")
        if types[ids[last]] != 1:
            continue
        tokens[ids[last]], merges[at] = left + right, merge.encode()
        ids[left + right] = ids.pop(last)
    return tokens, merges[:at] + merges[at:][::-1]


def strings(items):
    return struct.pack("<IQ", 8, len(items)) + b"".join(struct.pack("<Q", len(s)) + s for s in items)


def altered(path, pre, out):
    """Writes path's model to out under the pre-tokenizer pre and with the crossing merges."""
    data, keys, places, end = read(path)
    tokens, merges = cross(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"], keys["tokenizer.ggml.merges"])
    values = {"tokenizer.ggml.pre": struct.pack("<Q", len(pre)) + pre.encode(),
              "tokenizer.ggml.tokens": strings(tokens), "tokenizer.ggml.merges": strings(merges)}
    align, head, at = 32, b"", 0  # no model here states another alignment
    for name in sorted(values, key=lambda n: places[n]):
        begin, after = places[name]
        head += data[at:begin] + values[name]
        at = after
    head += data[at:end]
    with open(out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % align) + data[end + (-end % align):])
