"""The tokenizer of a GGUF file: its keys, as the package `tokenizers` wants them; and the same file under another
pre-tokenizer."""
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


def with_pre(path, pre, out):
    """Writes path's model to out under the pre-tokenizer pre."""
    data, keys, places, end = read(path)
    if keys["tokenizer.ggml.pre"] == pre.encode():
        return path
    align = 32  # no model here states another
    begin, after = places["tokenizer.ggml.pre"]
    head = data[:begin] + struct.pack("<Q", len(pre)) + pre.encode() + data[after:end]
    with open(out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % align) + data[end + (-end % align):])
    return out
