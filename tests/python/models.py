"""Small models, each with a function that makes a batch of `rows` rows and one that computes a loss the plain way."""

import torch

VOCABULARY = 96


class Transformer(torch.nn.Module):
    """Two blocks of our own, with tied embedding and a loss computed by the training loop."""

    def __init__(self, width=32, heads=4, blocks=2):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True) for _ in range(blocks))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        torch.nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
            torch.nn.Linear(16, 10))

    def forward(self, images):
        return self.layers(images)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 24)
        self.lstm = torch.nn.LSTM(24, 32, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


def next_token_loss(net, batch):
    logits = net(batch["tokens"])
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def tokens(rows, generator):
    return {"tokens": torch.randint(0, VOCABULARY, (rows, 12), generator=generator)}


def images(rows, generator):
    return {"images": torch.randn(rows, 3, 8, 8, generator=generator),
            "classes": torch.randint(0, 10, (rows,), generator=generator)}


def class_loss(net, batch):
    return torch.nn.functional.cross_entropy(net(batch["images"]), batch["classes"])


def labelled(rows, generator):
    ids = torch.randint(0, VOCABULARY, (rows, 12), generator=generator)
    return {"input_ids": ids, "labels": ids}


def own_loss(net, batch):
    return net(**batch).loss


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16))


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                      intermediate_size=64, max_position_embeddings=16, hidden_dropout_prob=0,
                                      attention_probs_dropout_prob=0))


# name: (build, batch, loss)
MODELS = {
    "transformer": (Transformer, tokens, next_token_loss),
    "convolutions": (Convolutions, images, class_loss),
    "lstm": (Recurrent, tokens, next_token_loss),
    "gpt2": (gpt2, labelled, own_loss),
    "llama": (llama, labelled, own_loss),
    "bert": (bert, labelled, own_loss),
}


def batches(make, steps, rows, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return [make(rows, generator) for _ in range(steps)]


def part(batch, rank, size):
    return {name: value.chunk(size)[rank] for name, value in batch.items()}


class Adapted(torch.nn.Module):
    """A body that is not trained, and a head that is."""

    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 1)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def frozen_net():
    torch.manual_seed(1)
    return Adapted()
