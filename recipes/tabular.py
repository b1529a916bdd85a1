"""Tabular records with differential privacy: is a tumour benign? Run it with: python recipes/tabular.py

The records are the 569 of the Wisconsin breast cancer study inside scikit-learn; no patient's diagnosis may be read off
the weights. Three things to look at before doing the same with records of your own:

- The change that makes training private is `strategy=GEPStrategy(...)`. Module, loaders and optimizer are ordinary.
- The scaling. Means and deviations of the training records would leak them, outside of ε. The smallest and largest
  value of each feature are taken from the table published with the data set instead. They describe these very
  patients, and cost nothing only because they have been public for decades; where nothing is published, use what the
  domain knows, such as the reference range of a laboratory value.
- What is public. No patient is. The auxiliary records are made up: each feature on its own, evenly over its published
  range, with random labels. They know nothing of how features go together, so do not expect more than ordinary DP-SGD
  gives (mechanism="gp"); records of another clinic that may be used freely would give a better basis.
"""

import re

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep import RandomLabels
from lightning_gep.strategy.callbacks import PrivacyMonitor
from lightning_gep.strategy.strategy import GEPStrategy

RANGE_ROW = re.compile(r"^[\w ]+\((?:mean|standard error|worst)\):\s+([\d.]+)\s+([\d.]+)\s*$", re.MULTILINE)


class BreastCancer(LightningDataModule):
    """30 features of a cell nucleus, scaled to [−1, 1]; 455 records to train, 114 to test."""

    def setup(self, stage=None):
        study = load_breast_cancer()
        low, high = torch.tensor([[float(value) for value in row] for row in RANGE_ROW.findall(study.DESCR)]).T
        features = torch.tensor(study.data, dtype=torch.float32)
        scaled = (2 * (features - low) / (high - low) - 1).clamp(-1, 1)  # the published values are rounded
        *features, train_labels, test_labels = train_test_split(
            scaled, torch.tensor(study.target), test_size=114, stratify=study.target, random_state=0
        )
        self.train, self.test = TensorDataset(features[0], train_labels), TensorDataset(features[1], test_labels)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=64, shuffle=True)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=114)

    def aux_dataloader(self):
        made_up = TensorDataset(2 * torch.rand(1000, 30) - 1)
        return DataLoader(RandomLabels(made_up, num_classes=2), batch_size=50, shuffle=True)


class Diagnosis(LightningModule):
    """A small network of the kind one would train without privacy too."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 2))

    def training_step(self, batch, batch_idx):
        features, labels = batch
        return nn.functional.cross_entropy(self.network(features), labels)

    def test_step(self, batch, batch_idx):
        features, labels = batch
        self.log("test/accuracy", (self.network(features).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def main(max_epochs=20):
    """Train and test; returns the test accuracy and the ε spent."""
    seed_everything(0)  # the initial weights only
    trainer = Trainer(
        max_epochs=max_epochs,
        # Without privacy this argument is not there. Nothing else in the file differs.
        strategy=GEPStrategy(epsilon=3.0, delta=1e-3, k=20, clip_embedding=1.0, clip_residual=0.5, num_anchors=50),
        callbacks=[PrivacyMonitor()],
        default_root_dir="outputs/tabular",
    )
    model, data = Diagnosis(), BreastCancer()
    trainer.fit(model, data)
    accuracy = trainer.test(model, data, verbose=False)[0]["test/accuracy"]
    epsilon = trainer.strategy.privacy.epsilon()
    print(f"test accuracy {100 * accuracy:.1f} % at ε = {epsilon:.3f}, δ = 0.001")
    return accuracy, epsilon


if __name__ == "__main__":
    main()
