"""A frozen llama or qwen3 model in plain PyTorch, from a GGUF file: the same mathematics as lib/model/README.md,
written as a user of PyTorch would. The layers are eager; attention is
scaled_dot_product_attention; no gradient of a weight exists."""
import gguf
import gguf.quants
import numpy
import torch
import torch.nn.functional as F


class Model:
    def __init__(self, path, dtype):
        reader = gguf.GGUFReader(path)
        self.dtype = dtype
        self.t = {t.name: self.tensor(t) for t in reader.tensors}
        field = {k: v.contents() for k, v in reader.fields.items() if not k.startswith("tokenizer.")}
        arch = field["general.architecture"]
        self.L = field[arch + ".block_count"]
        self.D = field[arch + ".embedding_length"]
        self.H = field[arch + ".attention.head_count"]
        self.HK = field[arch + ".attention.head_count_kv"]
        self.DH = field.get(arch + ".attention.key_length", self.D // self.H)
        self.eps = field[arch + ".attention.layer_norm_rms_epsilon"]
        self.interleaved = arch == "llama"
        base = field.get(arch + ".rope.freq_base", 10000.0)
        angles = torch.outer(torch.arange(4096.0), base ** (-torch.arange(0, self.DH, 2.0) / self.DH))
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.head = self.t.get("output.weight", self.t["token_embd.weight"])

    def tensor(self, t):
        """Widened to f32 and rounded to the type of the run; norms too."""
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(numpy.float32, copy=False)
        return torch.from_numpy(numpy.array(values)).to(self.dtype)

    def rope(self, x, first):
        """x [B, T, heads, DH] at positions first, first + 1, ..."""
        T = x.shape[1]
        c, s = self.cos[first : first + T, None], self.sin[first : first + T, None]
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.t[name], self.eps)

    def attention(self, q, k, v, mask):
        """q [B, T, H, DH] over k, v [B, S, HK, DH]."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return y.transpose(1, 2)

    def layer(self, x, i, prefix, mask, rows):
        """prefix: keys and values [2, P, HK, DH] of this layer, or None. Also returns the new keys and values."""
        B, T, _ = x.shape
        t, b = self.t, f"blk.{i}."
        h = self.norm(x, b + "attn_norm.weight")
        q = F.linear(h, t[b + "attn_q.weight"]).view(B, T, self.H, self.DH)
        k = F.linear(h, t[b + "attn_k.weight"]).view(B, T, self.HK, self.DH)
        v = F.linear(h, t[b + "attn_v.weight"]).view(B, T, self.HK, self.DH)
        if b + "attn_q_norm.weight" in t:
            q, k = self.norm(q, b + "attn_q_norm.weight"), self.norm(k, b + "attn_k_norm.weight")
        P = 0 if prefix is None else prefix.shape[1]
        q, k = self.rope(q, P), self.rope(k, P)
        keys, values = k, v
        if prefix is not None:
            keys = torch.cat((prefix[0].expand(B, -1, -1, -1), k), 1)
            values = torch.cat((prefix[1].expand(B, -1, -1, -1), v), 1)
        a = self.attention(q, keys, values, mask).flatten(2)
        # Of the last layer only the wanted rows are used further on.
        if rows is not None:
            x, a = x[:, -rows:], a[:, -rows:]
        x = x + F.linear(a, t[b + "attn_output.weight"])
        h = self.norm(x, b + "ffn_norm.weight")
        h = F.silu(F.linear(h, t[b + "ffn_gate.weight"])) * F.linear(h, t[b + "ffn_up.weight"])
        return x + F.linear(h, t[b + "ffn_down.weight"]), k, v

    def hidden(self, ids, prefix=None, rows=1):
        """ids [B, T]; prefix [L, 2, P, HK, DH]. The last rows of each after the final norm [B, rows, D], and keys and
        values [L, 2, B, T, HK, DH] of the ids."""
        T = ids.shape[1]
        mask, made = None, []
        if prefix is not None:
            P = prefix.shape[2]
            mask = torch.ones(T, P + T, dtype=torch.bool).tril(P)
        x = F.embedding(ids, self.t["token_embd.weight"])
        for i in range(self.L):
            x, k, v = self.layer(x, i, None if prefix is None else prefix[i], mask, rows if i == self.L - 1 else None)
            if prefix is None and not torch.is_grad_enabled():
                made.append((k, v))
        return self.norm(x, "output_norm.weight"), made

    def logits(self, hidden):
        return F.linear(hidden, self.head)
