import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from lightning_gep.errors import ConfigurationError
from recipes.data.formats import cifar, idx, npz, svhn
from recipes.data.formats.image_files import fit_images
from recipes.data.image_sets import CIFAR_10, MNIST, SVHN
from tests import data_files
from tests.data_files import labels, pixels


def nchw(images):
    return images.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("folder", ["", "MNIST/raw"])
@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_are_read_compressed_or_not_and_where_torchvision_keeps_them(folder, compressed, tmp_path):
    data_files.write_mnist(tmp_path / folder, compressed=compressed)
    for part, count in (("train", 30), ("test", 20)):
        images, own = idx.find(tmp_path, part).read()
        assert np.array_equal(images, nchw(pixels(count, 28, 28, 1)))
        assert np.array_equal(own, labels(count))


@pytest.mark.parametrize("archive", [False, True])
def test_cifar_batches_are_read_in_order_also_from_the_archive(archive, tmp_path):
    data_files.write_cifar10(tmp_path, archive=archive)
    images, own = cifar.CIFAR10.find(tmp_path, "train").read()
    assert np.array_equal(images, np.concatenate([nchw(pixels(6, seed=i)) for i in range(1, 6)]))
    assert own.tolist() == 5 * [0, 1, 2, 3, 4, 5]
    assert len(cifar.CIFAR10.find(tmp_path, "test").read().images) == 20


def test_cifar_100_gives_its_fine_labels(tmp_path):
    data_files.write_cifar100(tmp_path, train=30)
    assert cifar.CIFAR100.find(tmp_path, "train").read().labels.tolist() == list(range(30))


def test_svhn_calls_the_digit_0_by_its_name_and_has_extra_images(tmp_path):
    data_files.write_svhn(tmp_path, extra=10)
    images, own = svhn.find(tmp_path, "train").read()
    assert np.array_equal(images, nchw(pixels(30)))
    assert np.array_equal(own, labels(30))
    assert len(svhn.find(tmp_path, "extra").read().images) == 10


def test_torchvision_reads_the_same(small_data, tmp_path, monkeypatch):
    from torchvision import datasets

    data_files.write_mnist(tmp_path / "MNIST" / "raw", compressed=False)  # as torchvision leaves them
    for module in (datasets.cifar, datasets.svhn):
        monkeypatch.setattr(module, "check_integrity", lambda *_: True)  # it knows the checksums of the real files
    mnist = datasets.MNIST(tmp_path, train=False)
    cifar10, svhn = datasets.CIFAR10(small_data, train=False), datasets.SVHN(small_data, split="test")
    for ours, images, own in (
        (MNIST.find(tmp_path, "test").read(), mnist.data[:, None].numpy(), mnist.targets.numpy()),
        (CIFAR_10.find(small_data, "test").read(), nchw(cifar10.data), cifar10.targets),
        (SVHN.find(small_data, "test").read(), svhn.data, svhn.labels),
    ):
        assert np.array_equal(ours.images, images)
        assert np.array_equal(ours.labels, own)


def test_an_npz_goes_before_the_official_files(tmp_path):
    data_files.write_mnist(tmp_path)
    data_files.write_npz(tmp_path / "mnist_train.npz", 12, side=28, channels=1)
    assert MNIST.find(tmp_path, "train").files == (tmp_path / "mnist_train.npz",)
    assert MNIST.find(tmp_path, "test").files[0].name == "t10k-images-idx3-ubyte.gz"


def test_grey_images_of_an_npz_may_come_without_a_channel(tmp_path):
    np.savez(tmp_path / "grey.npz", images=pixels(3, 28, 28, 1)[..., 0])
    images, own = npz.find(tmp_path / "grey.npz").read()
    assert images.shape == (3, 1, 28, 28)
    assert own is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": pixels(3)}, r"no array 'images' \(it has pictures\)"),
        ({"images": pixels(3).astype(float)}, r"images of type float64 and shape \(3, 32, 32, 3\)"),
        ({"images": pixels(3).reshape(3, -1)}, r"images of type uint8 and shape \(3, 3072\)"),
        ({"images": pixels(3), "labels": np.arange(4)}, r"labels of shape \(4,\) for 3 images"),
        ({"images": np.array([{}])}, "cannot be read .*allow_pickle"),
    ],
)
def test_an_npz_with_something_else_says_what(arrays, message, tmp_path):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ConfigurationError, match=message):
        npz.find(tmp_path / "own.npz").read()


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "image_set"),
    [
        ("train-images-idx3-ubyte.gz", MNIST),
        ("train-images-idx3-ubyte", MNIST),
        ("cifar-10-batches-py/data_batch_3", CIFAR_10),
        ("cifar-10-python.tar.gz", CIFAR_10),
        ("train_32x32.mat", SVHN),
        ("mnist_train.npz", MNIST),
    ],
)
@pytest.mark.parametrize("damage", [truncate, lambda path: path.write_bytes(b"\n"), lambda path: path.write_bytes(b"")])
def test_a_file_that_is_cut_short_is_named(name, image_set, damage, tmp_path):
    data_files.write_mnist(tmp_path, compressed=name.endswith(".gz"))
    data_files.write_cifar10(tmp_path, archive=name.endswith(".tar.gz"))
    data_files.write_svhn(tmp_path)
    if name.endswith(".npz"):
        data_files.write_npz(tmp_path / name, 5, side=28, channels=1)
    damage(tmp_path / name)
    with pytest.raises(ConfigurationError, match=rf"{Path(name).name}.* cannot be read .*get it again"):
        image_set.find(tmp_path, "train").read()


def test_an_idx_file_of_another_type_is_refused(tmp_path):
    data_files.write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes([0, 0, 0x0D, 3]) + bytes(40)))
    with pytest.raises(ConfigurationError, match="does not begin as an idx file of bytes does"):
        idx.find(tmp_path, "train").read()


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    data_files.write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps({"data": Trap()}))
    with pytest.raises(ConfigurationError, match=r"asks for posix.mkdir, which a batch of images has no use for"):
        cifar.CIFAR10.find(tmp_path, "train").read()
    assert not (tmp_path / "sprung").exists()


def test_images_are_fitted_by_their_middle_and_smoothly():
    left, right = np.full((1, 3, 32, 16), 200, np.uint8), np.full((1, 3, 32, 16), 100, np.uint8)
    halves = np.concatenate([left, right], axis=3)
    assert fit_images(halves, (3, 32, 32)) is halves
    grey = fit_images(halves, (1, 28, 28))
    assert grey.shape == (1, 1, 28, 28)
    assert (grey[..., :13] == 200).all()
    assert (grey[..., 15:] == 100).all()
    middle = fit_images(halves, (3, 32, 8))  # a narrow strip of the middle, both halves in it
    assert middle.shape == (1, 3, 32, 8)
    assert set(np.unique(middle)) == {100, 200}
    colour = fit_images(grey, (3, 14, 14))
    assert (colour[0, 0] == colour[0, 1]).all()
