"""torch_worker.py MODEL.gguf THREADS f32|bf16: PyTorch as a worker of compare.py. Each line of standard input is a
workload (prefill, teacher, train) of tests/helper/workload.h; the answer is "SECONDS VALUE". Weights are frozen and of
the named type; in training the rows before the conversations are f32 leaves, and their gradient is the only one."""
import sys
import time

import torch

from torch_model import Model

TOPK, ENTRIES = 20, 8  # of helper/workload.h


def ids(B, T):
    return torch.tensor([[(b + i) * 37 % 251 for i in range(T)] for b in range(B)])


class Worker:
    def __init__(self, path, dtype):
        self.m = Model(path, dtype)
        self.kept = {}

    @torch.no_grad()
    def prefill(self, T):
        tokens = ids(1, T)
        start = time.perf_counter()
        logits = self.m.logits(self.m.hidden(tokens)[0])
        return time.perf_counter() - start, logits.max().item()

    @torch.no_grad()
    def teacher(self, B, T, R):
        tokens = ids(B, T)
        start = time.perf_counter()
        logits = self.m.logits(self.m.hidden(tokens, rows=R)[0]).float()
        top = logits.topk(TOPK)
        logprobs = top.values - logits.logsumexp(-1, keepdim=True)
        return time.perf_counter() - start, logprobs[..., 0].mean().item()

    @torch.no_grad()
    def prefix(self, P):
        """The rows of the first P ids [L, 2, P, HK, DH]."""
        _, made = self.m.hidden(ids(1, P))
        return torch.stack([torch.stack((k[0], v[0])) for k, v in made]).float()

    def train(self, B, T, P, R):
        if P not in self.kept:
            self.kept[P] = self.prefix(P).requires_grad_()
        rows, tokens = self.kept[P], ids(B, T)
        targets = torch.arange(ENTRIES).expand(B, R, ENTRIES)
        p = torch.full((B, R, ENTRIES), 0.9 / ENTRIES)
        start = time.perf_counter()
        logits = self.m.logits(self.m.hidden(tokens, rows.to(self.m.dtype), R)[0]).float()
        # -sum p log softmax without the V-wide log softmax.
        loss = (0.9 * logits.logsumexp(-1) - (p * logits.gather(-1, targets)).sum(-1)).sum()
        loss.backward()
        return time.perf_counter() - start, loss.item() / (B * R)


def main():
    torch.set_num_threads(int(sys.argv[2]))
    worker = Worker(sys.argv[1], {"f32": torch.float32, "bf16": torch.bfloat16}[sys.argv[3]])
    for line in sys.stdin:
        name, *rest = line.split()
        print("%.9f %.9g" % getattr(worker, name)(*map(int, rest)), flush=True)


main()
