"""An audit of real fits by `lightning_gep.audit`: what a record does to releases, and the noise on them."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from scipy.stats import chi2
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_gep.audit import Subject
from lightning_gep.audit.mechanism import releases
from lightning_gep.privacy.plan import PrivacyPlan
from tests.toys import Gradients, strategy, trainer

INPUTS, OUTPUTS = 10, 12
SIGMA, CANARIES = 0.2, 40
ACCURACY = 0.0044
"""The standard error of a canary's shift, 1/σ = 5, which takes 200 releases."""
MECHANISMS = {
    "gep, separate clipping": {"mechanism": "gep"},
    "gep, joint clipping": {"mechanism": "gep", "clipping": "joint", "generator": "secure"},
    "bgep": {"mechanism": "bgep"},
    "gp": {"mechanism": "gp"},
    "spectral": {"mechanism": "spectral"},
}


class Linear(LightningModule):
    """A record (x, t) has the gradient t ⊗ x, whatever the weights."""

    def __init__(self, inputs=INPUTS, outputs=OUTPUTS):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs, bias=False)

    def training_step(self, batch, batch_idx):
        x, t = batch
        return (t * self.layer(x)).sum(1).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Releases(Gradients):
    def sums(self, plan: PrivacyPlan) -> Tensor:
        return torch.stack(self.seen).double() * plan.expected_batch_size


def random_records(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, INPUTS, generator=generator), torch.randn(count, OUTPUTS, generator=generator)
    )


def audited(**settings):
    """Scores of canaries in many releases, beside records whose gradients exceed some of the thresholds."""
    if settings["mechanism"] != "gp":
        settings["aux_dataloader"] = DataLoader(random_records(80, seed=2), batch_size=20)
    clips = {"clip_embedding": 3.0, "clip_residual": 0.5, "clip_norm": 0.7}
    given = {"epsilon": 1.0, "delta": 1e-6, "k": 40, "num_anchors": 60, **clips, **settings}
    data = DataLoader(random_records(20, seed=1), batch_size=4)
    subject = Subject(Linear(), data, given, {"max_epochs": 1, "accelerator": "cpu"})
    return releases(subject, SIGMA, accuracy=ACCURACY, canaries=CANARIES)


def check_noise(noise: Tensor) -> None:
    """Steps × coordinates are independent and standard normal; fewer than one false alarm in 10⁷ calls."""
    steps, size = noise.shape
    energy = noise.square().sum(1).numpy()
    for of, values, alarm in (("all steps", energy.sum(), 1e-9), ("a step", energy, 1e-11)):
        freedom = noise.numel() if of == "all steps" else size
        probability = 2 * min(chi2.cdf(values, freedom).min(), chi2.sf(values, freedom).min())
        assert probability > alarm, f"the scale of the noise of {of} is wrong"
    products = noise @ noise.T
    cosines = products / products.diagonal().sqrt().outer(products.diagonal().sqrt())
    assert float(cosines.fill_diagonal_(0).abs().max()) < 0.9, "a step has the noise of another"
    for lag in range(1, steps // 2):
        together = float(products.diagonal(lag).sum()) / ((steps - lag) * size) ** 0.5
        assert abs(together) < 6.5, f"the noise has something of that {lag} steps before"


def check_steady(noise: Tensor) -> None:
    """The noise in one direction has mean zero over the steps of every period; false alarms are as rare."""
    for period in range(1, len(noise) // 3):
        for first in range(period):
            some = noise[first::period]
            assert abs(float(some.sum())) < 7 * len(some) ** 0.5, f"some releases are shifted, every {period} steps"


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_canary_shows_as_much_as_is_claimed_and_no_more(name):
    seen = audited(**MECHANISMS[name])
    assert seen.plan.release.noise_multiplier == pytest.approx(SIGMA, rel=1e-6)
    noise = torch.from_numpy(seen.scores - seen.included / SIGMA)
    check_noise(noise)
    check_steady(noise.sum(1) / CANARIES**0.5)
    included, left_out = seen.sides
    measured = float(np.mean(included) - np.mean(left_out)) * SIGMA
    assert measured < 1.03, "it shows more than the account says"
    assert measured > 0.95, "or the audit would see nothing"


class SavedReleases(Releases):
    """Of every process, in a file of its own."""

    def on_train_end(self, trainer, pl_module):
        sums = self.sums(trainer.strategy.privacy.plan).view(-1, 200, 100)
        torch.save(sums, f"{trainer.default_root_dir}/rank{trainer.global_rank}.pt")


@pytest.mark.distributed
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_release_every_record_once_and_the_noise_of_one(tmp_path, processes):
    """Nothing is seeded: with a seed all processes draw the same noise, and shares of it add up to what they should."""
    x, t = torch.eye(100), torch.zeros(100, 200)
    t[:, 0] = 5.0
    settings = {"mechanism": "gp", "noise_multiplier": 0.05, "clip_norm": 0.5, "generator": "system"}
    fit = trainer(
        tmp_path,
        strategy(**settings, start_method="fork"),
        max_epochs=2,
        devices=processes,
        callbacks=[SavedReleases()],
    )
    fit.fit(Linear(100, 200), DataLoader(TensorDataset(x, t), batch_size=60 // processes))
    sums, *others = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(processes))
    assert len(sums) == 4
    assert all(torch.equal(sums, other) for other in others)
    drawn, noise = sums[:, 0] / 0.5, sums[:, 1:].flatten(1) / (0.05 * 0.5)
    assert set(drawn.round().flatten().tolist()) == {0.0, 1.0}, "a record is in the sum once, or it is not"
    assert float(drawn.round().mean()) == pytest.approx(0.6, abs=0.15), "all processes together draw at rate q"
    check_noise(noise)
