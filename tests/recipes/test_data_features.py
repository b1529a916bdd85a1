import numpy as np
import pytest
import torch

from lightning_gep.errors import ConfigurationError
from recipes.data import features as features_module
from recipes.data.efficientnet import EfficientNetLite0
from recipes.data.features import FeaturesDataModule, extract_features
from recipes.data.public import TestSamples
from recipes.data.public_sources import Cifar100, ImageNet
from tests.data_files import pixels


class Means:
    """A network that can be followed by hand: the mean of each channel. It may stop after some calls."""

    num_features = 3

    def __init__(self, name="means", calls=1000):
        self.name, self.left, self.seen = name, calls, 0

    def __call__(self, images):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.seen += len(images)
        return np.asarray(images).mean(axis=(2, 3))


def features(directory, cache, network=None, **settings):
    settings = {"batch_size": 4, "validation_size": 0, "num_features": 3, "cache_directory": str(cache), **settings}
    module = FeaturesDataModule("cifar10", network or Means(), directory=str(directory), **settings)
    module.prepare_data()
    module.setup()
    return module


def test_the_records_are_features_scaled_to_length_1_with_the_labels_of_the_images(small_data, tmp_path):
    module = features(small_data, tmp_path, validation_size=10)
    assert [len(part) for part in (module.train, module.validation, module.test)] == [20, 10, 20]
    row = module.train.indices[4]
    means = torch.tensor(pixels(30)[row].mean(axis=(0, 1))).float()
    x, y = module.train[4]
    assert torch.allclose(x, means / means.norm())
    assert y == row % 10


def test_features_are_computed_once(small_data, tmp_path):
    first, second, other = Means(), Means(), Means("other means")
    before = features(small_data, tmp_path, first)
    assert first.seen == 50
    after = features(small_data, tmp_path, second)
    assert second.seen == 0
    assert torch.equal(before.train[3][0], after.train[3][0])
    features(small_data, tmp_path, other)
    assert other.seen == 50, "the features of another network are not taken for these"


@pytest.mark.parametrize(
    "damaged",
    [lambda content: content[:-1], lambda content: content[:-20] + bytes(20)],
    ids=["cut off by a full disk", "zeros after a power failure"],
)
def test_an_interrupted_computation_goes_on_where_it_stopped(damaged, tmp_path, monkeypatch):
    monkeypatch.setattr(features_module, "IMAGES_PER_CHUNK", 4)
    images, cache = pixels(10).transpose(0, 3, 1, 2), tmp_path
    with pytest.raises(KeyboardInterrupt):
        extract_features(images, "ten", Means(calls=2), cache)
    (chunk,) = tmp_path.glob(".ten-means.*.chunks/00000004-*/features.npy")
    chunk.write_bytes(damaged(chunk.read_bytes()))
    rest = Means()
    found = extract_features(images, "ten", rest, cache)
    assert rest.seen == 6
    assert np.allclose(found, images.mean(axis=(2, 3)))
    assert not list(tmp_path.glob("*.chunks"))
    changed = Means()
    extract_features(images[::-1], "ten", changed, cache)
    assert changed.seen == 10, "the features of other images are not taken for these"


def test_public_features_come_from_the_same_network(small_data, tmp_path):
    module = features(small_data, tmp_path, aux=TestSamples(count=5))
    assert [len(module.aux_dataloader().dataset), len(module.test)] == [5, 15]
    module = features(small_data, tmp_path, aux=ImageNet(str(small_data), count=8))
    public = module.aux_dataloader().dataset
    assert len(public) == 8
    images = module.aux.records((3, 32, 32)).inputs
    means = torch.tensor(images[2].mean(axis=(1, 2))).float()
    assert torch.allclose(public[2][0], means / means.norm())
    module = features(small_data, tmp_path, aux=Cifar100(str(small_data), count=None, labels="true"))
    with pytest.raises(ConfigurationError, match="labels of these public images go from 0 to 29"):
        module.aux_dataloader()
    with pytest.raises(ConfigurationError, match="aux=Subset cannot be turned into features"):
        features(small_data, tmp_path, aux=torch.utils.data.Subset([1], [0])).aux_dataloader()


def test_another_length_of_features_is_named(small_data, tmp_path):
    with pytest.raises(ConfigurationError, match=r"have 3 entries. Set data.num_features=3"):
        features(small_data, tmp_path, num_features=4)


def test_the_pre_trained_network_sees_each_image_by_itself_and_tells_them_apart():
    network = EfficientNetLite0(image_size=32, batch_size=2, device="cpu")
    images = pixels(5).transpose(0, 3, 1, 2)
    together = network(images)
    assert together.shape == (5, network.num_features) == (5, 1280)
    assert together.dtype == np.float32
    assert np.isfinite(together).all()
    assert np.allclose(together[3:4], network(images[3:4]), atol=1e-4)
    assert np.abs(together[0] - together[1]).max() > 0.1
    grey = images[:1, :1]
    assert np.allclose(network(grey), network(grey.repeat(3, axis=1)), atol=1e-5)
