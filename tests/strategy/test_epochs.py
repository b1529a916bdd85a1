"""Nothing comes again in a later epoch: neither noise nor batches, whatever was seeded."""

import pytest
import torch
from lightning.pytorch import seed_everything
from torch.utils.data import DataLoader, TensorDataset

from tests.test_audit import Linear, Releases
from tests.toys import strategy, trainer

EPOCHS, STEPS, RECORDS, OUTPUTS = 3, 5, 60, 40


@pytest.mark.parametrize("generator", ["system", "secure"])
def test_no_epoch_has_the_noise_or_the_batches_of_another(tmp_path, generator):
    """Record i has the gradient eᵢ in the first row of the weights; the other rows of a release are noise alone."""
    seed_everything(3)
    targets = torch.zeros(RECORDS, OUTPUTS)
    targets[:, 0] = 5.0
    spy = Releases()
    used = strategy(mechanism="gp", generator=generator, noise_multiplier=0.05, clip_norm=1.0)
    data = DataLoader(TensorDataset(torch.eye(RECORDS), targets), batch_size=RECORDS // STEPS)
    trainer(tmp_path, used, max_epochs=EPOCHS, callbacks=[spy]).fit(Linear(RECORDS, OUTPUTS), data)
    sums = spy.sums(used.privacy.plan).view(EPOCHS * STEPS, OUTPUTS, RECORDS)

    batches = {tuple(row) for row in sums[:, 0].round().tolist()}
    assert len(batches) == EPOCHS * STEPS, "each of 60 records is drawn with probability 1/5: no two batches are equal"
    noise = torch.nn.functional.normalize(sums[:, 1:].flatten(1), dim=1)
    cosines = (noise @ noise.T).fill_diagonal_(0.0)
    assert float(cosines.abs().max()) < 6 * noise.shape[1] ** -0.5, "a step has the noise of another"
