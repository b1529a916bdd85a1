"""Which topic has a story? LoRA on a sentence encoder, privately. Run it with: python -m recipes.text.classification

The encoder is all-MiniLM-L6-v2 (22 million parameters, frozen); what is trained is a LoRA of its last two layers and a
linear layer, 27,656 parameters. Stories of Reuters are private, posts of 20 Newsgroups with random labels are public.

- The model is that of `transformers` and `peft`, not wrapped: `model.encoder.save_pretrained(...)` writes the adapter.
- All records have one length. Padding to the longest of a batch would let one record change the others (`FixedLength`).
- The set of topics is public; that every one of them occurs in the training data is taken as known.
"""

import argparse

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

from lightning_gep import GEPStrategy, RandomLabels
from recipes.text.corpora import classified, encoder_folder

TOPICS, LENGTH, PADDING = 8, 16, 0
"""Stories begin with their headline, so a few word pieces tell much and cost little."""
EPOCHS, BATCH, DELTA = 2, 256, 1e-5
LEARNING_RATE, LEARNING_RATE_OF_LORA = 3e-2, 1e-3
MECHANISMS = ("none", "gp", "spectral")


class Stories(LightningDataModule):
    """Reuters R8 to train and test, 20 Newsgroups as public data."""

    def __init__(self, length=LENGTH):
        super().__init__()
        self.length = length

    def setup(self, stage=None):
        tokenizer = AutoTokenizer.from_pretrained(encoder_folder())
        names = ("reuters-r8-train", "reuters-r8-test", "20newsgroups-train")
        self.train, self.test, self.public = (classified(name, tokenizer, self.length) for name in names)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=BATCH, shuffle=True)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=128)

    def aux_dataloader(self):
        return DataLoader(RandomLabels(self.public, TOPICS), batch_size=50, shuffle=True)


class Topic(LightningModule):
    """A linear layer on the mean of the encoder's outputs."""

    def __init__(self):
        super().__init__()
        encoder = AutoModel.from_pretrained(encoder_folder(), add_pooling_layer=False)
        adapter = LoraConfig(r=8, target_modules=["query", "value"], layers_to_transform=[4, 5])
        self.encoder = get_peft_model(encoder, adapter)
        self.head = nn.Linear(encoder.config.hidden_size, TOPICS)

    def forward(self, words):
        mask = (words != PADDING).long()
        states = self.encoder(input_ids=words, attention_mask=mask).last_hidden_state
        return self.head((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    def training_step(self, batch, batch_idx):
        words, topics = batch
        return nn.functional.cross_entropy(self(words), topics)

    def test_step(self, batch, batch_idx):
        words, topics = batch
        self.log("test/accuracy", (self(words).argmax(1) == topics).float().mean())

    def configure_optimizers(self):
        lora = [p for p in self.encoder.parameters() if p.requires_grad]
        head = {"params": self.head.parameters(), "lr": LEARNING_RATE}
        return torch.optim.Adam([{"params": lora, "lr": LEARNING_RATE_OF_LORA}, head])


def main(mechanism="spectral", epsilon=3.0, seed=0, epochs=EPOCHS, data=None, **settings):
    """Train and test; returns the test accuracy and the ε spent, infinite for mechanism="none"."""
    seed_everything(seed)
    private = {"epsilon": epsilon, "delta": DELTA, "mechanism": mechanism, "refresh_every": 4, **settings}
    trainer = Trainer(
        max_epochs=epochs,
        strategy="auto" if mechanism == "none" else GEPStrategy(**private),
        default_root_dir="outputs/text",
        logger=False,
        enable_checkpointing=False,
    )
    model, data = Topic(), data or Stories()
    trainer.fit(model, data)
    accuracy = trainer.test(model, data, verbose=False)[0]["test/accuracy"]
    spent = float("inf") if mechanism == "none" else trainer.strategy.privacy.epsilon()
    print(f"{mechanism}: test accuracy {100 * accuracy:.1f} % at ε = {spent:.3f}, δ = {DELTA}")
    return accuracy, spent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mechanism", choices=MECHANISMS, default="spectral")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    main(**vars(parser.parse_args()))
