"""llama_worker.py MODEL.gguf THREADS: llama.cpp as a worker of compare.py. Each line of standard input is a workload of
tests/helper/workload.h; the answer is "SECONDS VALUE". Also known here:

    start N          load of the model, a context of N + 16 tokens, prefill of N tokens and the first token's logits
    talk C,I,Q,U,A ...  conversations, one after another: C tokens of context and I of instruction as a prompt, Q
                     decoded; then, behind the same context, which stays, U as a prompt and A decoded

Everything is llama.cpp's default but what is named here: both thread counts, 512 tokens a batch. Keys and values are
f16. A conversation's tokens are given, not sampled."""
import ctypes
import statistics
import sys
import time

import llama_cpp as ll

STEPS = 16  # WORKLOAD_STEPS


def workload_id(i):
    return i * 37 % 251


class Context:
    """A llama_context with its batch."""

    def __init__(self, model, threads, rows, sequences=1, unified=False):
        p = ll.llama_context_default_params()
        p.n_ctx = rows
        p.n_batch = p.n_ubatch = 512
        p.n_seq_max = sequences
        p.n_threads = p.n_threads_batch = threads
        p.kv_unified = unified
        p.no_perf = True
        self.ctx = ll.llama_init_from_model(model, p)
        if not self.ctx:
            raise MemoryError(f"no context of {rows} tokens")
        self.memory = ll.llama_get_memory(self.ctx)
        self.batch = ll.llama_batch_init(512, 0, 1)

    def free(self):
        ll.llama_batch_free(self.batch)
        ll.llama_free(self.ctx)

    def decode(self, tokens):
        """tokens: (id, position, sequence, whether its logits are wanted); at most 512. Returns seconds."""
        b = self.batch
        b.n_tokens = len(tokens)
        for i, (token, pos, seq, want) in enumerate(tokens):
            b.token[i] = token
            b.pos[i] = pos
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = seq
            b.logits[i] = want
        start = time.perf_counter()
        r = ll.llama_decode(self.ctx, b)
        ll.llama_synchronize(self.ctx)
        ll.llama_get_logits(self.ctx)
        seconds = time.perf_counter() - start
        if r != 0:
            raise RuntimeError(f"llama_decode: {r}")
        return seconds

    def prefill(self, n, first=0, ids=workload_id):
        """n tokens of sequence 0 from position first on, logits of the last."""
        seconds = 0.0
        for at in range(0, n, 512):
            end = min(n, at + 512)
            seconds += self.decode([(ids(i), first + i, 0, i == n - 1) for i in range(at, end)])
        return seconds


class Worker:
    def __init__(self, path, threads):
        self.path, self.threads = path.encode(), threads
        self.model = self.load()
        self.width = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.kept = {}

    def load(self):
        model = ll.llama_model_load_from_file(self.path, ll.llama_model_default_params())
        if not model:
            raise OSError(f"{self.path.decode()}: llama.cpp cannot load it")
        return model

    def context(self, key, rows):
        if key not in self.kept:
            self.kept[key] = Context(self.model, self.threads, rows)
        return self.kept[key]

    def largest(self, c):
        logits = ll.llama_get_logits_ith(c.ctx, -1)
        return max(logits[: self.width])

    def prefill(self, n):
        c = self.context(("prefill", n), n)
        ll.llama_memory_clear(c.memory, False)
        return c.prefill(n), self.largest(c)

    def streams(self, b, depth, unified):
        """b sequences with the same depth rows, decoded together. unified: the rows exist once."""
        key = ("decode", b, depth, unified)
        if key not in self.kept:
            rows = depth + b * STEPS if unified else b * (depth + STEPS)
            c = self.kept[key] = Context(self.model, self.threads, rows, b, unified)
            c.prefill(depth)
            for seq in range(1, b):
                ll.llama_memory_seq_cp(c.memory, 0, seq, -1, -1)
        c = self.kept[key]
        times = [
            c.decode([(workload_id(seq), depth + i, seq, True) for seq in range(b)]) for i in range(STEPS)
        ]
        for seq in range(b):
            ll.llama_memory_seq_rm(c.memory, seq, depth, -1)
        return statistics.median(times), 0.0

    def start(self, n):
        begin = time.perf_counter()
        model = self.load()
        c = Context(model, self.threads, n + 16)
        c.prefill(n)
        seconds = time.perf_counter() - begin
        c.free()
        ll.llama_model_free(model)
        return seconds, 0.0

    def talk(self, conversations):
        c = self.context("talk", 2048)
        seconds = 0.0
        for text in conversations:
            context, instruction, question, prompt, answer = (int(n) for n in text.split(","))
            ll.llama_memory_clear(c.memory, False)
            for first, new, made in ((0, context + instruction, question), (context, prompt, answer)):
                ll.llama_memory_seq_rm(c.memory, 0, first, -1)
                seconds += c.prefill(new, first)
                for i in range(made):
                    seconds += c.decode([(workload_id(i), first + new + i, 0, True)])
        return seconds, 0.0

    def answer(self, line):
        name, *rest = line.split()
        if name == "talk":
            return self.talk(rest)
        n = [int(x) for x in rest]
        if name == "prefill":
            return self.prefill(n[0])
        if name == "start":
            return self.start(n[0])
        return self.streams(n[0], n[1], unified=name == "shared")


@ll.llama_log_callback
def silent(_level, _text, _user):
    pass


def main():
    ll.llama_log_set(silent, ctypes.c_void_p(0))
    ll.llama_backend_init()
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        print("%.9f %.9g" % worker.answer(line), flush=True)


main()
