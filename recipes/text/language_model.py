"""A small language model of posts, privately. Run it with: python -m recipes.text.language_model

A GPT-2 of two layers, from its configuration, learns the bytes of 20 Newsgroups by DP-SGD: every post is a record. It
is too small to write sense, but what it shows carries over to a larger one:

- A record is one post, cut or padded to one length; labels of the padding are −100 and do not count.
- Embeddings are tied, and the model is not wrapped: `generate` and `save_pretrained` work as before.
- The loss is the mean over a post's own bytes, so long posts do not count more than short ones.
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

from lightning_gep import GEPStrategy
from recipes.text.corpora import stories

LENGTH, BYTES, IGNORED, DELTA = 64, 256, -100, 1e-5


def posts(length=LENGTH):
    """Records (bytes, attention mask, labels)."""
    texts = [text.encode()[:length] for _, text in stories("20newsgroups-train")]
    padded = torch.tensor([list(text.ljust(length, b"\0")) for text in texts])
    mask = torch.arange(length) < torch.tensor([len(text) for text in texts])[:, None]
    return TensorDataset(padded, mask.long(), torch.where(mask, padded, IGNORED))


class Writer(LightningModule):
    """GPT-2 over bytes."""

    def __init__(self, width=64, layers=2):
        super().__init__()
        size = {"n_embd": width, "n_layer": layers, "n_head": 4, "n_positions": LENGTH, "vocab_size": BYTES}
        self.model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))

    def training_step(self, batch, batch_idx):
        words, mask, labels = batch
        return self.model(input_ids=words, attention_mask=mask, labels=labels).loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)

    def write(self, beginning, length=40):
        """Let the model go on."""
        words = torch.tensor([list(beginning.encode())])
        written = self.model.generate(
            words, attention_mask=torch.ones_like(words), max_new_tokens=length, do_sample=True, pad_token_id=0
        )
        return bytes(written[0].tolist()).decode(errors="replace")


def main(epsilon=8.0, epochs=1, seed=0, data=None, batch_size=256, **settings):
    """Train; returns the module and the ε spent."""
    seed_everything(seed)
    trainer = Trainer(
        max_epochs=epochs,
        strategy=GEPStrategy(epsilon=epsilon, delta=DELTA, mechanism="gp", clip_norm=0.5, **settings),
        default_root_dir="outputs/language_model",
        logger=False,
        enable_checkpointing=False,
    )
    module = Writer()
    trainer.fit(module, DataLoader(data or posts(), batch_size=batch_size, shuffle=True))
    print(module.write("the "))
    return module, trainer.strategy.privacy.epsilon()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=1)
    main(**vars(parser.parse_args()))
