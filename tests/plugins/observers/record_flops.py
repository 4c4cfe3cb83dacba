"""Records torch.utils.flop_counter's figures for the built-in models, forward and backward: recorded_flops.tsv.

    python record_flops.py > recorded_flops.tsv        (torch 2.11.0, on the CPU)

flop_counter has no formula for the CPU's attention kernel, which is counted here by its own formulas for flash attention.
"""

import torch
from torch import nn
from torch.utils import flop_counter

aten = torch.ops.aten


def attention(q, k, v, *_, out_shape=None, **__):
    return flop_counter.sdpa_flop_count(q, k, v)


def attention_backward(grad_out, q, k, v, *_, out_shape=None, **__):
    return flop_counter.sdpa_backward_flop_count(grad_out, q, k, v)


ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
}


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.out(nn.functional.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, d, heads, seq, vocab):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln(h))


class Mlp(nn.Module):
    def __init__(self, context, d, hidden, layers, vocab):
        super().__init__()
        self.context, self.vocab = context, vocab
        self.tok = nn.Embedding(vocab + 1, d)
        self.hidden = nn.ModuleList(nn.Linear(context * d if i == 0 else hidden, hidden) for i in range(layers))
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x):
        h = nn.functional.pad(x, (self.context - 1, 0), value=self.vocab).unfold(1, self.context, 1)
        h = self.tok(h).flatten(2)
        for linear in self.hidden:
            h = linear(h).tanh()
        return self.head(h)


def counted(model, batch, seq, vocab):
    x = torch.randint(0, vocab, (batch, seq))
    with flop_counter.FlopCounterMode(display=False, custom_mapping=ATTENTION) as forward:
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    with flop_counter.FlopCounterMode(display=False, custom_mapping=ATTENTION) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


print("model\tbatch\tforward\tbackward")
print("gpt", 2, *counted(Gpt(4, 128, 4, 128, 256), 2, 128, 256), sep="\t")
print("mlp", 4, *counted(Mlp(8, 16, 64, 2, 256), 4, 32, 256), sep="\t")
