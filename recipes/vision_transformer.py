"""A vision transformer on your own images: head and LoRA, privately. Run: python recipes/vision_transformer.py FOLDER

FOLDER has one folder of images per class, as `torchvision.datasets.ImageFolder` reads them. The weights are those of
torchvision (ViT-B/16, trained on ImageNet, so public), downloaded at the first run. What is trained is a LoRA of the
feed-forward layers and a new head.
"""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import ViT_B_16_Weights, vit_b_16

from lightning_gep import GEPStrategy

FEED_FORWARD = r".*\.mlp\.[03]"


class Images(LightningModule):
    """A torchvision transformer with an adapter; only the adapter and the head are trained."""

    def __init__(self, network, classes):
        super().__init__()
        network.heads = nn.Linear(network.hidden_dim, classes)
        self.network = get_peft_model(
            network, LoraConfig(r=4, target_modules=FEED_FORWARD, modules_to_save=["heads"], lora_dropout=0.0)
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=1e-3)


def main(network, train, classes, epochs=3, batch_size=64, epsilon=8.0, **settings):
    """Train; returns the module and the ε spent."""
    trainer = Trainer(
        max_epochs=epochs,
        strategy=GEPStrategy(epsilon=epsilon, mechanism="gp", **settings),
        default_root_dir="outputs/vision_transformer",
        logger=False,
        enable_checkpointing=False,
    )
    module = Images(network, classes)
    trainer.fit(module, DataLoader(train, batch_size=batch_size, shuffle=True))
    return module, trainer.strategy.privacy.epsilon()


if __name__ == "__main__":
    weights = ViT_B_16_Weights.DEFAULT
    folder = ImageFolder(sys.argv[1], transform=weights.transforms())
    adapted, _ = main(vit_b_16(weights=weights), folder, len(folder.classes))
    adapted.network.save_pretrained("outputs/vision_transformer/adapter")
