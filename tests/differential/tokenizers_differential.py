"""cart-tokenize against the package `tokenizers`. Run by tests/differential/run."""
import argparse
import json
import os
import struct
import subprocess
import sys
import time
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import gguf
import hostile

BATCH = 20000
SHOWN = 10
# As published in the tokenizer.json of each family.
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL,
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL,
}
CONTROL, USER_DEFINED = 3, 4


def reference(keys, pre, special):
    """The tokenizer that these keys describe, as its tokenizer.json would be."""
    tokens = [t.decode() for t in keys["tokenizer.ggml.tokens"]]
    types = keys["tokenizer.ggml.token_type"]
    merges = [tuple(m.decode().split(" ")) for m in keys["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges, fuse_unk=False,
                             byte_fallback=False, ignore_merges=pre == "llama-bpe"))
    if pre == "smollm":
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if pre == "qwen2":
        t.normalizer = normalizers.NFC()
    if special:
        t.add_special_tokens([AddedToken(s, normalized=False, special=True)
                              for s, k in zip(tokens, types) if k in (CONTROL, USER_DEFINED)])
    return t


def ours(tools, model, texts, special, work):
    lines = os.path.join(work, "strings.jsonl")
    with open(lines, "w") as f:
        for text in texts:
            f.write(json.dumps({"text": text}) + "\n")
    tokenize = subprocess.Popen([tools[0], "-q", "-m", model] + ["--special"] * special + [lines], stdout=subprocess.PIPE)
    view = subprocess.Popen([tools[1], "-"], stdin=tokenize.stdout, stdout=subprocess.PIPE)
    tokenize.stdout.close()
    found = [json.loads(line)["tokens"] for line in view.stdout if line.startswith(b'{"record":"doc"')]
    if tokenize.wait() or view.wait():
        sys.exit("cart-tokenize or cart-view failed")
    return found


def compare(args, model, pre, first, count):
    """Strings first .. first + count - 1, each twice. Returns how many comparisons differ."""
    path = os.path.join(args.work, "model.gguf")
    gguf.altered(model, pre, path)
    keys = gguf.read(path)[1]
    oracles = [reference(keys, pre, special) for special in (False, True)]
    what = "%s with the vocabulary of %s" % (pre, os.path.basename(model))
    differ, ids, begun = 0, 0, time.time()
    for at in range(first, first + count, BATCH):
        texts = [hostile.string(n) for n in range(at, min(at + BATCH, first + count))]
        for special, oracle in enumerate(oracles):
            found = ours(args.tools, path, texts, special, args.work)
            if len(found) != len(texts):
                sys.exit("expected %d documents, found %d" % (len(texts), len(found)))
            for n, (f, e) in enumerate(zip(found, oracle.encode_batch(texts, add_special_tokens=False))):
                ids += len(f)
                if f != e.ids:
                    differ += 1
                    if differ <= SHOWN:
                        print("string %d %s: %s\n  expected %s\n  found    %s" %
                              (at + n, "special" if special else "text", ascii(texts[n]), e.ids, f))
        print("%s: %d strings, %d differences" % (what, at + len(texts) - first, differ), file=sys.stderr)
    print("%s: %d strings, as text and with control tokens, %d ids: %d differ (%.0f s)" %
          (what, count, ids, differ, time.time() - begun), flush=True)
    return differ


def sample(path, sets, count):
    """Strings with the CRC-32 of their ids (as text; little-endian 32-bit numbers) under each pre-tokenizer, as JSON
    Lines."""
    oracles = {}
    for s in sets:
        model, pre = s.rsplit(":", 1)
        oracles[pre] = reference(gguf.read(model)[1], pre, False)
    with open(path, "w") as f:
        for n in range(count):
            text = hostile.string(n)
            line = {"text": text}
            for pre, t in oracles.items():
                ids = t.encode(text, add_special_tokens=False).ids
                line[pre] = "%08x" % zlib.crc32(struct.pack("<%dI" % len(ids), *ids))
            f.write(json.dumps(line) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--work", help="a folder for files that pass")
    p.add_argument("--tools", nargs=2, help="cart-tokenize and cart-view")
    p.add_argument("--sample", help="write this file instead, for tests/golden/token")
    p.add_argument("--count", type=int, required=True)
    p.add_argument("sets", nargs="+")
    args = p.parse_args()
    if args.sample:
        return sample(args.sample, args.sets, args.count)
    each, differ = -(-args.count // len(args.sets)), 0
    for i, s in enumerate(args.sets):
        model, pre = s.rsplit(":", 1)
        differ += compare(args, model, pre, i * each, each)
    print("%d strings, %d differences" % (each * len(args.sets), differ))
    return differ != 0


sys.exit(main())
