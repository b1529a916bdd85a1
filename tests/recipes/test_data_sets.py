"""Data files: what is read, what is missing, what is damaged, and what is downloaded."""

import os

import numpy as np
import pytest

from lightning_gep.errors import ConfigurationError, MissingDataError
from recipes.data.image_sets import CIFAR_10, MNIST, PRIVATE, SVHN
from recipes.data.images import ImageDataModule
from tests import data_files
from tests.data_files import labels, pixels


def nchw(images):
    return images.transpose(0, 3, 1, 2)


def loaded(place, name="mnist", **settings):
    return ImageDataModule(name, str(place), batch_size=4, validation_size=0, **settings).load()


def test_official_files_are_read_by_torchvision(tmp_path, monkeypatch):
    data_files.write_mnist(tmp_path / "MNIST" / "raw")
    data_files.write_official_cifar10(tmp_path, monkeypatch)
    data_files.write_official_svhn(tmp_path, monkeypatch)
    batches = np.concatenate([pixels(6, seed=i) for i in range(1, 6)])
    expected = {"mnist": pixels(30, 28, 28, 1), "svhn": pixels(30), "cifar10": batches}
    for name, images in expected.items():
        found = PRIVATE[name].read(tmp_path, "train")
        assert np.array_equal(found.images, nchw(images))
        rows = np.tile(np.arange(6), 5) if name == "cifar10" else labels(30)
        assert np.array_equal(found.labels, rows)
        assert len(PRIVATE[name].read(tmp_path, "test").images) == 20


def test_an_npz_goes_before_the_official_files_and_may_be_grey(tmp_path):
    data_files.write_mnist(tmp_path / "MNIST" / "raw")
    np.savez(tmp_path / "mnist_train.npz", images=pixels(12, 28, 28, 1)[..., 0], labels=labels(12))
    train, test = loaded(tmp_path)
    assert [len(train), len(test)] == [12, 20]
    assert train[0][0].shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": pixels(3)}, "no array 'images'"),
        ({"images": pixels(3).astype(float)}, r"images of type float64 and shape \(3, 32, 32, 3\)"),
        ({"images": pixels(3, 28, 28, 1), "labels": np.arange(4)}, r"shape \(4,\) for 3 records"),
        ({"images": np.array([{}])}, "cannot be read .*allow_pickle"),
        ({"images": pixels(30, 28, 28, 3), "labels": labels(30)}, "shape 3 × 28 × 28, but those of MNIST have 1 × 28"),
        ({"images": pixels(30, 28, 28, 1), "labels": labels(30) + 1}, r"labels in 0 … 9. Is it the right file"),
    ],
)
def test_an_npz_with_something_else_says_what(arrays, message, tmp_path):
    np.savez(tmp_path / "mnist_train.npz", **arrays)
    data_files.write_npz(tmp_path / "mnist_test.npz", 5, side=28, channels=1)
    with pytest.raises(ConfigurationError, match=rf"mnist_train.npz.*{message}"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("name", "image_set"),
    [
        ("MNIST/raw/train-images-idx3-ubyte", MNIST),
        ("cifar-10-batches-py/data_batch_3", CIFAR_10),
        ("train_32x32.mat", SVHN),
        ("mnist_train.npz", MNIST),
    ],
)
def test_a_damaged_file_is_an_error_with_the_fix(name, image_set, tmp_path, monkeypatch):
    data_files.write_mnist(tmp_path / "MNIST" / "raw")
    data_files.write_official_cifar10(tmp_path, monkeypatch)
    data_files.write_official_svhn(tmp_path, monkeypatch)
    if name.endswith(".npz"):
        data_files.write_npz(tmp_path / name, 5, side=28, channels=1)
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
    with pytest.raises(ConfigurationError, match=rf"({image_set.title}|mnist_train.npz).*get (it|them) again"):
        image_set.read(tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mnist", {}, r"MNIST \(train\) is not in directory='.*': put mnist_train.npz or .*train-images-idx3-ubyte"),
        ("cifar10", {}, r"CIFAR-10 \(train\) .* put cifar10_train.npz .*data.download=true"),
        ("svhn", {"extra": True}, r"SVHN \(extra\) .* put svhn_extra.npz or .*extra_32x32.mat"),
    ],
)
def test_a_missing_data_set_says_what_to_put_where(name, settings, message, tmp_path):
    if settings:
        data_files.write_svhn(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(MissingDataError, match=message):
        loaded(tmp_path, name, **settings)
    with pytest.raises(MissingDataError, match=message):
        ImageDataModule(name, str(tmp_path), **settings).check_files()
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


def test_missing_files_are_downloaded_by_torchvision_if_asked_for(tmp_path, monkeypatch):
    def download(dataset):
        data_files.write_mnist(tmp_path / "MNIST" / "raw")

    monkeypatch.setattr("torchvision.datasets.MNIST.download", download)
    train, test = loaded(tmp_path, download=True)
    assert [len(train), len(test)] == [30, 20]
    monkeypatch.setattr(
        "torchvision.datasets.SVHN.download", lambda _: (_ for _ in ()).throw(RuntimeError("no network"))
    )
    with pytest.raises(ConfigurationError, match=r"could not download SVHN in '.*' \(no network\)"):
        loaded(tmp_path, "svhn", download=True)
