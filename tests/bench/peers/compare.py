"""compare.py BUILD [-r ROUNDS] [-m MODEL]... [-c CLASS] [-w WORKLOAD]...: the same work by cart (bench_model of BUILD),
llama.cpp and PyTorch, in turns within one run: one round that does not count, then ROUNDS (5). -m keeps the models whose
name contains one of the words, -w the workloads of exactly these names ("start" and "talk" are the whole tools cart-ask and
cart-selfstudy), -c one class of ours (f32 or bf16), without the whole tools. Prints a table for SPEED.md: medians with the
least and the most, the ratio (peer over ours, of the same round), and how far the results are apart: ends with status 1
where that is more than 0.1. --check looks at the arguments and does no more."""
import argparse
import importlib.util
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RANDOM = "qwen3-0.6b-shape-"  # the models that bench_model makes
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


TOOLS = ["start", "talk"]


class Worker:
    """A process that answers each line with "SECONDS VALUE". What interrupts us does not reach it: it is stopped."""

    running = []

    def __init__(self, name, *command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        start_new_session=True)
        Worker.running.append(self)

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().split()
        except BrokenPipeError:
            answer = []
        if len(answer) != 2:
            sys.exit(f"compare.py: {self.name}: {line}: no answer")
        return float(answer[0]), float(answer[1])

    def close(self):
        Worker.running.remove(self)
        self.process.stdin.close()
        self.process.wait()

    @staticmethod
    def stop():
        for worker in Worker.running:
            worker.process.kill()
            worker.process.wait()
        Worker.running.clear()


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

    def models(self, how):
        program = os.path.join(self.build, "bench/bench_model")
        out = subprocess.run([program, how], check=True, text=True, stdout=subprocess.PIPE)
        return out.stdout.split("\n")[:-1]


def spread(values, scale=1.0, digits=1):
    low, middle, high = (scale * f(values) for f in (min, statistics.median, max))
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def compare(ours, peer, line, instead, rounds):
    """Both in turns; returns the row."""
    mine, theirs, ratios, apart = [], [], [], None
    for i in range(rounds + 1):
        a, value = ours.ask(line)
        b, other = peer.ask(instead)
        if i > 0:
            mine.append(a)
            theirs.append(b)
            ratios.append(b / a)
        if value and other:
            apart = max(apart or 0.0, abs(value - other) / max(1.0, abs(value)))
            if not abs(value - other) <= FAR * max(1.0, abs(value)):  # nor a NaN
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
        if not options.w or name in options.w:
            ours, instead = make()
            print(compare(ours, peer, name, instead, options.r).replace(", theirs " + instead, ""), flush=True)
    peer.close()


class Load:
    """What others took of the machine since this was made, as limit_load_warn of tests/helper/limits.h has it."""

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        """Seconds of all CPUs, busy ones, and those of this process and the children it has waited for."""
        with open("/proc/stat", encoding="ascii") as f:
            ticks = [int(n) / os.sysconf("SC_CLK_TCK") for n in f.readline().split()[1:9]]
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(ticks), sum(ticks) - ticks[3] - ticks[4], sum(u.ru_utime + u.ru_stime for u in used)

    def warn(self):
        every, busy, own = (b - a for a, b in zip(self.start, self.now()))
        others = (busy - own) / every if every > 0.5 else 0
        if others > 0.05:
            print(f"compare.py: {100 * others:.0f} % of the machine was used by others: figures are not comparable",
                  file=sys.stderr)


class Arguments(argparse.ArgumentParser):
    def format_help(self):
        return __doc__ + "\n"

    def error(self, message):
        self.exit(2, f"compare.py: {message}; -h tells more\n")


def whole(text):
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10000):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 10000, found '{text}'")
    return int(text)


def workload(text):
    known = list(dict.fromkeys(LLAMA + LLAMA_BF16 + TORCH + TOOLS))
    if text not in known:
        raise argparse.ArgumentTypeError(f"expected {' | '.join(known)}, found '{text}'")
    return text


def wanted(words, name):
    return not words or any(w in name for w in words)


def arguments():
    parser = Arguments()
    parser.add_argument("build")
    parser.add_argument("-r", type=whole, default=5)
    parser.add_argument("-m", action="append", default=[])
    parser.add_argument("-c", choices=["f32", "bf16"])
    parser.add_argument("-w", action="append", default=[], type=workload)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for name in ("bench/bench_model", "bin/cart-ask"):
        program = os.path.join(options.build, name)
        if not os.access(program, os.X_OK):
            parser.error(f"{program}: expected the program, built for make bench-peers, found none")
    names = [os.path.basename(path) for path in Bench(options.build).models("--models")]
    if not any(wanted(options.m, name) for name in names):
        parser.error(f"-m: expected a part of {' | '.join(names)}, found '{' '.join(options.m)}'")
    return options


def compare_model(bench, path, options):
    """One table. Returns whether there was anything to compare."""
    cases = [(klass, start, [line for line in lines if not options.w or line in options.w])
             for klass, start, lines in bench.cases(path) if options.c in (None, klass)]
    whole_tools = (bench.has["llama_cpp"] and not options.c and RANDOM not in path
                   and (not options.w or any(name in options.w for name in TOOLS)))
    if not whole_tools and not any(lines for _, _, lines in cases):
        return False
    print(f"\n{os.path.basename(path)}, load {os.getloadavg()[0]:.1f}\n")
    print("| work | ours | peer | ours, ms | peer, ms | ratio | apart |\n|---|---|---|---|---|---|---|", flush=True)
    for klass, start, lines in cases:
        if not lines:
            continue
        ours, peer = bench.ours(path, klass), start()
        for line in lines:
            for instead in INSTEAD.get(line, [line]):
                print(compare(ours, peer, line, instead, options.r), flush=True)
        ours.close()
        peer.close()
    if whole_tools:
        tools(bench, path, options)
    return True


def main():
    options = arguments()
    if options.check:
        return
    bench = Bench(options.build)
    if not bench.has["llama_cpp"] and not (bench.has["torch"] and bench.has["gguf"]):
        sys.exit("compare.py: expected llama_cpp, or torch and gguf, to compare with; found neither")
    paths = [path for path in bench.models("--make") if wanted(options.m, os.path.basename(path))]
    load = Load()
    if not any([compare_model(bench, path, options) for path in paths]):
        sys.exit("compare.py: nothing is compared: no peer here does this work on these models in this class")
    load.warn()


def interrupted(sig, _frame):
    raise KeyboardInterrupt(sig)


def die(sig):
    """As the signal would have, but after what there was to remove."""
    signal.signal(sig, signal.SIG_DFL)
    os.kill(os.getpid(), sig)


signal.signal(signal.SIGTERM, interrupted)
try:
    main()
except subprocess.CalledProcessError as failed:
    # The tool has said why.
    sys.exit(failed.returncode if failed.returncode > 0 else 128 - failed.returncode)
except OSError as failed:
    sys.exit(f"compare.py: {failed}")
except KeyboardInterrupt as stop:
    Worker.stop()
    die(stop.args[0] if stop.args else signal.SIGINT)
finally:
    Worker.stop()
