"""Modules and data for test_verify: some train the same in every way, and each of the others has a fault of its own."""

import random

import torch

WIDTH, ROWS = 8, 32


class Net(torch.nn.Module):
    def __init__(self, between=None):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, 16)
        self.between = between or torch.nn.Identity()
        self.last = torch.nn.Linear(16, WIDTH)

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.last(self.between(torch.tanh(self.first(x)))), y)


class InPython(torch.nn.Module):
    def forward(self, hidden):
        return hidden * (0.5 + random.random())


class Counting(torch.nn.Module):
    """Keeps state that no checkpoint holds."""

    calls = 0

    def forward(self, hidden):
        self.calls += 1
        return hidden * (1 + 0.1 * self.calls)


class InPlace(Net):
    def forward(self, x, y):
        return super().forward(x.mul_(0.5), y)


class SumOfRows(Net):
    """A sum where a mean is due: the gradient grows with the rows of a micro-batch."""

    def forward(self, x, y):
        return super().forward(x, y) * len(x)


class Detached(Net):
    """The function that goes back through `last` keeps the number of rows that it saw first."""

    def forward(self, x, y):
        if not hasattr(self, "rows"):
            self.rows = len(x)
        return super().forward(x, y) * (len(x) / self.rows)


class Labelled(torch.nn.Module):
    """A mean over the labels that count, as models of transformers have it."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 16)
        self.head = torch.nn.Linear(16, 16)

    def forward(self, input_ids, labels):
        logits = self.head(self.table(input_ids))[:, :-1]
        return torch.nn.functional.cross_entropy(logits.reshape(-1, 16), labels[:, 1:].reshape(-1), ignore_index=-100)


def plain():
    return Net()


def dropout():
    return Net(torch.nn.Dropout(0.5))


def batch_norm():
    return Net(torch.nn.BatchNorm1d(16))


def in_python():
    return Net(InPython())


def counting():
    return Net(Counting())


def in_place():
    return InPlace()


def sum_of_rows():
    return SumOfRows()


def labelled():
    return Labelled()


def samples():
    generator = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(WIDTH, generator=generator), "y": torch.randn(WIDTH, generator=generator)}
            for _ in range(ROWS)]


def tokens():
    """Rows with other counts of labels."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for row in range(ROWS):
        ids = torch.randint(16, (12,), generator=generator)
        labels = ids.clone()
        labels[3 + row % 9:] = -100
        made.append({"input_ids": ids, "labels": labels})
    return made


def sentences():
    generator = torch.Generator().manual_seed(3)
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(64, (ROWS, 16), generator=generator)]


def _small(config):
    """The model of a configuration of transformers, with dropout off."""
    import transformers

    name = type(config).__name__.removesuffix("Config")
    suffix = {"GPT2": "LMHeadModel", "Llama": "ForCausalLM", "Bert": "ForMaskedLM", "T5": "ForConditionalGeneration"}[name]
    return getattr(transformers, name + suffix)(config)


def gpt2():
    import transformers

    return _small(transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0,
                                          embd_pdrop=0, attn_pdrop=0))


def llama():
    import transformers

    return _small(transformers.LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                           num_attention_heads=2, max_position_embeddings=16))


def bert():
    import transformers

    return _small(transformers.BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                          intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0,
                                          attention_probs_dropout_prob=0))


def t5():
    import transformers

    return _small(transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0,
                                        decoder_start_token_id=0))
