from functools import partial

import pytest
import torch
from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import ConstantLR

from lightning_gep import GEPStrategy, PinkNoise, RandomLabels
from lightning_gep.errors import ConfigurationError
from recipes.data.digits import DigitsDataModule
from recipes.data.synthetic import Synthetic
from recipes.models.classifier import ImageClassifier
from recipes.models.small_cnn import SmallCNN


def test_amplitudes_fall_as_one_over_the_frequency():
    images = torch.stack([PinkNoise((1, 64, 64), count=64)[i] for i in range(64)])
    spectrum = torch.fft.fft2(images).abs().square().mean(dim=(0, 1)).sqrt()
    # Along one axis, frequencies 4/64 and 16/64: a quarter of the amplitude; white noise would have the same.
    ratios = [float(spectrum[4, 0] / spectrum[16, 0]), float(spectrum[0, 4] / spectrum[0, 16])]
    assert ratios == pytest.approx([4.0, 4.0], rel=0.35)


def test_records_have_the_scale_asked_for_and_depend_on_seed_and_index_alone():
    noise = PinkNoise((3, 8, 8), count=5, scale=0.25)
    assert noise[2].std(unbiased=False).item() == pytest.approx(0.25, rel=1e-4)
    assert noise[2].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(noise[2], PinkNoise((3, 8, 8), count=9, scale=0.25)[2])
    assert not torch.equal(noise[2], noise[3])
    assert not torch.equal(noise[2], PinkNoise((3, 8, 8), count=5, scale=0.25, seed=1)[2])
    assert len(noise) == 5
    with pytest.raises(IndexError, match="5 records, none at 5"):
        noise[5]


def test_feature_vectors_are_white():
    vectors = torch.stack([PinkNoise((64,), count=256)[i] for i in range(256)])
    spectrum = torch.fft.fft(vectors).abs().square().mean(dim=0)[1:]
    assert float(spectrum.max() / spectrum.min()) < 2


@pytest.mark.parametrize(("name", "value"), [("count", 0), ("scale", 0.0), ("seed", -1)])
def test_settings_that_cannot_work_are_refused(name, value):
    with pytest.raises(ConfigurationError, match=name):
        PinkNoise((3, 8, 8), **{name: value})


@pytest.mark.parametrize("mechanism", ["gep", "spectral"])
def test_a_run_without_public_data_of_its_own(mechanism, tmp_path):
    data = DigitsDataModule(batch_size=64, aux=Synthetic(count=64))
    strategy = GEPStrategy(noise_multiplier=1.0, k=8, num_anchors=16, mechanism=mechanism)
    trainer = Trainer(max_steps=2, strategy=strategy, accelerator="cpu", default_root_dir=tmp_path, logger=False)
    trainer.fit(ImageClassifier(SmallCNN(), partial(torch.optim.SGD, lr=0.5), partial(ConstantLR, factor=1.0)), data)
    assert strategy.privacy.steps == 2
    assert isinstance(data.aux_dataloader().dataset, RandomLabels)
