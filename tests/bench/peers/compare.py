"""compare.py BUILD [-r ROUNDS] [-m MODEL]... [-c CLASS] [-w WORKLOAD]...: the same work by cart (bench_model of BUILD),
llama.cpp and PyTorch, in turns within one run: one round that does not count, then ROUNDS (5). -m and -w keep those whose
name contains one of the words, -c one class of ours (f32 or bf16), without the whole tools. Prints a table for SPEED.md:
medians with the least and the most, the ratio (peer over ours, of the same round), and how far the results are apart: ends
with status 1 where that is more than FAR."""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Of largest logits, losses and log-probabilities: llama.cpp rounds activations to 8 bits and keys to f16.
FAR = 0.1
THREADS = len(os.sched_getaffinity(0))

LLAMA = ["prefill 512", "decode 1 16", "decode 1 512", "decode 4 512", "decode 16 512", "shared 16 512",
         "decode-f16 1 512", "decode-f16 16 512", "shared-f16 16 512"]
# Of the bf16 class: llama.cpp rounds activations to 8 bits or to the type of the weights, and its keys are f16 too.
LLAMA_BF16 = ["prefill 512", "decode 1 512", "decode-f16 4 512", "decode-f16 16 512", "shared-f16 16 512"]
TORCH = ["prefill 512", "teacher 4 600 160", "train 4 224 256 160"]
# Behind a shared prefix llama.cpp is also asked to give each sequence rows of its own.
INSTEAD = {"shared 16 512": ["shared 16 512", "decode 16 512"], "shared-f16 16 512": ["shared 16 512", "decode 16 512"],
           "decode-f16 1 512": ["decode 1 512"], "decode-f16 4 512": ["decode 4 512"],
           "decode-f16 16 512": ["decode 16 512"]}


class Worker:
    """A process that answers each line with "SECONDS VALUE"."""

    def __init__(self, name, *command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            sys.exit(f"compare.py: {self.name}: {line}: no answer")
        return float(answer[0]), float(answer[1])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Study:
    """Sixteen conversations about examples/manual by cart-selfstudy, the whole process; and the same numbers of tokens
    for llama.cpp, one conversation after another. Of a message only what was kept counts for llama.cpp, less 12 for its
    turn and given words; what instructs the model is taken for 30 tokens, the turn around a chunk for 8."""

    def __init__(self, build, path):
        self.bin = os.path.join(build, "bin/")
        self.folder = tempfile.TemporaryDirectory()
        self.tokens = os.path.join(self.folder.name, "tokens")
        self.talks = os.path.join(self.folder.name, "talks")
        self.path = path
        self.name = "cart-selfstudy"
        manual = os.path.join(HERE, "../../../examples/manual")
        self.run("cart-tokenize", "-o", self.tokens, manual)
        self.ask()

    def run(self, tool, *arguments):
        subprocess.run([self.bin + tool, "-q", "-m", self.path, *arguments], check=True)

    def ask(self, _line=None):
        kinds = "structuring,summarisation,question,use-case,creative,mechanism,verbatim"
        start = time.perf_counter()
        self.run("cart-selfstudy", "-n", "16", "--held-out", "0", "--context", "chunk", "--seed-types", kinds,
                 "-o", self.talks, self.tokens)
        return time.perf_counter() - start, 0.0

    def line(self):
        """The workload "talk" of llama_worker.py."""
        view = [self.bin + "cart-view", self.talks]
        text = subprocess.run(view, check=True, text=True, stdout=subprocess.PIPE).stdout
        out = ["talk"]
        for c in map(json.loads, text.splitlines()):
            if c["record"] == "conv":
                turn, end = c["supervised"][0][0], len(c["ids"])
                span = c["context_span"][1] - c["context_span"][0]
                out.append(f"{span + 8},30,{max(1, turn - 12)},{turn},{end - turn}")
        return " ".join(out)


class Start:
    """The first bytes of an answer of cart-ask, from the start of the process."""

    name = "cart-ask"

    def __init__(self, build, path):
        question = "Where is the key of the third drawer kept?"
        self.command = [os.path.join(build, "bin/cart-ask"), "-q", "-m", path, "--max-tokens", "1", question]

    def ask(self, _line):
        start = time.perf_counter()
        with subprocess.Popen(self.command, stdout=subprocess.PIPE) as process:
            process.stdout.read(1)
            return time.perf_counter() - start, 0.0


class Bench:
    def __init__(self, build):
        self.build = build
        self.has = {name: importlib.util.find_spec(name) for name in ("llama_cpp", "torch", "gguf")}

    def ours(self, path, klass):
        program = os.path.join(self.build, "bench/bench_model")
        options = ["+bf16"] if klass == "bf16" else []
        return Worker(f"cart {klass}", program, *options, "--serve", path)

    def llama(self, path):
        script = os.path.join(HERE, "llama_worker.py")
        return Worker("llama.cpp", sys.executable, script, path, str(THREADS))

    def torch(self, path, dtype):
        script = os.path.join(HERE, "torch_worker.py")
        return Worker(f"torch {dtype}", sys.executable, script, path, str(THREADS), dtype)

    def cases(self, path):
        """(our class, peer, workloads): what is compared on this file."""
        small = "SmolLM2" in path
        if self.has["llama_cpp"]:
            yield "f32", lambda: self.llama(path), LLAMA
            if self.bf16():
                yield "bf16", lambda: self.llama(path), LLAMA_BF16
        if self.has["torch"] and self.has["gguf"] and (small or "BF16" in path):
            yield "f32", lambda: self.torch(path, "f32"), TORCH
            if self.bf16():
                yield "bf16", lambda: self.torch(path, "bf16"), TORCH
                yield "bf16", lambda: self.torch(path, "f32"), TORCH[2:]

    @staticmethod
    def bf16():
        with open("/proc/cpuinfo", encoding="ascii") as f:
            return "avx512_bf16" in f.read()

    def models(self):
        out = subprocess.run([os.path.join(self.build, "bench/bench_model"), "--make"], check=True, text=True,
                             stdout=subprocess.PIPE)
        return out.stdout.split("\n")[:-1]


def spread(values, scale=1.0, digits=1):
    low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def compare(ours, peer, line, instead, rounds):
    """Both in turns; returns the row."""
    mine, theirs, ratios = [], [], []
    for i in range(rounds + 1):
        a, value = ours.ask(line)
        b, other = peer.ask(instead)
        if i > 0:
            mine.append(a)
            theirs.append(b)
            ratios.append(b / a)
    apart = abs(value - other) / max(1.0, abs(value)) if value and other else None
    if apart is not None and apart > FAR:
        sys.exit(f"compare.py: {line}: {ours.name} {value}, {peer.name} {other}: not the same work")
    what = line if instead == line else f"{line}, theirs {instead}"
    return (f"| {what} | {ours.name} | {peer.name} | {spread(mine, 1e3)} | {spread(theirs, 1e3)} "
            f"| {spread(ratios, digits=2)} | {'' if apart is None else f'{apart:.4f}'} |")


def tools(bench, path, options):
    """What whole tools do, against llama.cpp."""
    peer = bench.llama(path)
    # The prompt of Start is 40 tokens.
    for name, make in (("start", lambda: (Start(bench.build, path), "start 40")),
                       ("talk", lambda: (lambda s: (s, s.line()))(Study(bench.build, path)))):
        if not options.w or any(w in name for w in options.w):
            ours, instead = make()
            print(compare(ours, peer, name, instead, options.r).replace(", theirs " + instead, ""), flush=True)
    peer.close()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("-r", type=int, default=5)
    parser.add_argument("-m", action="append", default=[])
    parser.add_argument("-c", choices=["f32", "bf16"])
    parser.add_argument("-w", action="append", default=[])
    options = parser.parse_args()
    bench = Bench(options.build)

    def wanted(words, text):
        return not words or any(w in text for w in words)

    for path in bench.models():
        if not wanted(options.m, path):
            continue
        print(f"\n{os.path.basename(path)}, load {os.getloadavg()[0]:.1f}\n")
        print("| work | ours | peer | ours, ms | peer, ms | ratio | apart |\n|---|---|---|---|---|---|---|")
        for klass, start, lines in bench.cases(path):
            lines = [line for line in lines if wanted(options.w, line)]
            if not lines or options.c not in (None, klass):
                continue
            ours, peer = bench.ours(path, klass), start()
            for line in lines:
                for instead in INSTEAD.get(line, [line]):
                    print(compare(ours, peer, line, instead, options.r), flush=True)
            ours.close()
            peer.close()
        if "SmolLM2" in path and bench.has["llama_cpp"] and not options.c:
            tools(bench, path, options)


main()
