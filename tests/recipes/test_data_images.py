import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.sampling import PoissonSampler, seeded_secret
from lightning_gep.strategy.data import PoissonLoader
from lightning_gep.strategy.public_data import check_public_data
from recipes.data.images import ImageDataModule
from recipes.data.photographs import Photographs
from recipes.data.public import TestSamples
from recipes.data.records import ImageRecords
from tests import data_files
from tests.data_files import pixels

SHAPES = {"mnist": (1, 28, 28), "svhn": (3, 32, 32), "cifar10": (3, 32, 32)}


def data(place, /, name="mnist", **settings):
    settings = {"directory": str(place), "batch_size": 4, "validation_size": 0, **settings}
    module = ImageDataModule(name, **settings)
    module.prepare_data()
    module.setup()
    return module


def contents(dataset):
    return [dataset[i][0].numpy().tobytes() for i in range(len(dataset))]


@pytest.fixture
def mnist(tmp_path):
    data_files.write_mnist(tmp_path / "MNIST" / "raw")
    return tmp_path


@pytest.mark.parametrize("name", SHAPES)
def test_every_data_set_has_its_shape_splits_and_public_images(name, small_data):
    module = data(small_data, name, validation_size=5, aux=TestSamples(count=8))
    assert [len(part) for part in (module.train, module.validation, module.test)] == [25, 5, 12]
    private, public = next(iter(module.train_dataloader())), next(iter(module.aux_dataloader()))
    for images, own in (private, public):
        assert images.shape[1:] == SHAPES[name]
        assert images.dtype == torch.float32
        assert own.dtype == torch.int64
        assert -1 <= images.min() < -0.9
        assert 0.9 < images.max() <= 1


def test_a_batch_read_at_once_is_the_records_read_one_by_one(mnist):
    records = data(mnist).train
    batch = records.__getitems__([7, 0, 29])
    assert [label for _, label in batch] == [7, 0, 9]
    for (image, label), row in zip(batch, (7, 0, 29), strict=True):
        assert torch.equal(image, records[row][0])
        assert label == records[row][1] == row % 10
        assert torch.equal(image, torch.tensor(pixels(30, 28, 28, 1)[row, ..., 0] / 127.5 - 1).float()[None])


def test_poisson_batches_are_read_at_once_also_through_a_subset(mnist, monkeypatch):
    module = data(mnist, validation_size=10)
    monkeypatch.setattr(ImageRecords, "__getitem__", None)  # a single read would fail
    sampler = PoissonSampler(20, 10, secret=seeded_secret(0), steps_per_epoch=3)
    for step, (images, own) in enumerate(PoissonLoader(module.train_dataloader(), sampler, lambda: 0, repeatable=True)):
        rows = [module.train.indices[i] for i in sampler.draw(step)]
        assert own.tolist() == [row % 10 for row in rows]
        assert len(images) == len(rows)


def test_the_splits_share_no_image_and_leave_none_out(mnist):
    module = data(mnist, validation_size=7)
    parts = [contents(part) for part in (module.train, module.validation, module.test)]
    assert [len(part) for part in parts] == [23, 7, 20]
    assert len({image for part in parts for image in part}) == 50


def test_extra_images_of_svhn_follow_the_others(small_data, tmp_path):
    module = data(small_data, "svhn", extra=True)
    assert len(module.train) == 40
    expected = torch.tensor(pixels(10, seed=2)[3].transpose(2, 0, 1) / 127.5 - 1).float()
    assert torch.allclose(module.train[33][0], expected)
    assert len(data(small_data, "svhn").train) == 30


def test_test_samples_leave_the_evaluation(mnist):
    whole = data(mnist)
    module = data(mnist, aux=TestSamples(count=6))
    public = module.aux_dataloader().dataset.dataset
    assert [len(public), len(module.test)] == [6, 14]
    assert sorted(contents(public) + contents(module.test)) == sorted(contents(whole.test))
    fewer = data(mnist, aux=TestSamples(count=4), seed=3)
    assert set(contents(fewer.aux_dataloader().dataset.dataset)) < set(contents(public))
    same_test = data(mnist, reserved_test_size=6, aux=Photographs())
    assert contents(same_test.test) == contents(module.test)
    larger = data(mnist, reserved_test_size=9, aux=TestSamples(count=6))
    assert contents(larger.aux_dataloader().dataset.dataset) == contents(public)
    assert len(larger.test) == 11


def test_public_images_pass_the_check_and_private_ones_do_not(mnist):
    module = data(mnist, validation_size=10, aux=TestSamples(count=10))
    assert check_public_data(module.aux_dataloader(), module.train_dataloader()).compared_with == "all training records"
    module.aux = Subset(module.train, [3])
    with pytest.raises(ConfigurationError, match="contains training records"):
        check_public_data(module.aux_dataloader(), module.train_dataloader())
    module.aux = TensorDataset(module.train[5][0][None])
    with pytest.raises(ConfigurationError, match="Public record 0 is a training record"):
        check_public_data(module.aux_dataloader(), module.train_dataloader())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "mnits"}, "name='mnits' is not known. Choose one of 'mnist', 'svhn', 'cifar10'"),
        ({"batch_size": 31}, "batch_size=31 is above the 30 training images. Use fewer, e.g. 30"),
        ({"validation_size": 30}, "validation_size=30 leaves none of the 30 training images"),
        ({"reserved_test_size": 20}, "reserved_test_size=20 leaves none of the 20 test images"),
        ({"aux": TestSamples(20)}, "count=20 leaves none of the 20 test images"),
        ({"extra": True}, "extra=True, but MNIST has no extra images"),
    ],
)
def test_a_value_that_cannot_work_is_named(settings, message, mnist):
    with pytest.raises(ConfigurationError, match=message):
        data(mnist, **settings)
