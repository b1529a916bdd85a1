"""Small data sets in the formats that the real ones come in: random pixels, labels that go round."""

import gzip
import io
import pickle
import tarfile
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat

CLASSES = 10


def pixels(count, height=32, width=32, channels=3, seed=0):
    """Bytes N × height × width × channels."""
    return np.random.default_rng([seed, count]).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def labels(count, classes=CLASSES):
    return np.arange(count) % classes


def write_npz(path, count, seed=0, *, side=32, channels=3, labelled=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"images": pixels(count, side, side, channels, seed)}
    np.savez(path, **arrays, **({"labels": labels(count)} if labelled else {}))


def write_mnist(directory, train=30, test=20, *, compressed=True):
    """The four idx files."""
    directory.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        _write_idx(directory / f"{prefix}-images-idx3-ubyte", pixels(count, 28, 28, 1)[..., 0], compressed)
        _write_idx(directory / f"{prefix}-labels-idx1-ubyte", labels(count).astype(np.uint8), compressed)


def _write_idx(path, array, compressed):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.tobytes()
    if compressed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def cifar_batch(count, seed, key="labels", classes=CLASSES):
    """A batch with one row of 3072 bytes for each image, pickled as by Python 2."""
    rows = pixels(count, seed=seed).transpose(0, 3, 1, 2).reshape(count, -1)
    return python2_pickle({"data": rows, key: labels(count, classes).tolist(), "batch_label": "a batch"})


def python2_pickle(content):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(content)
    return file.getvalue().replace(b"numpy._core", b"numpy.core")  # where numpy had its functions then


class Python2Pickler(pickle._Pickler):
    """Text and bytes were one type in Python 2, with an opcode that today's pickle reads but does not write."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        content = value if isinstance(value, bytes) else value.encode("latin1")
        self.write(pickle.BINSTRING + len(content).to_bytes(4, "little") + content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def cifar10_batches(train=30, test=20):
    parts = {f"data_batch_{i}": cifar_batch(train // 5, seed=i) for i in range(1, 6)}
    names = python2_pickle({"label_names": [f"class {i}" for i in range(CLASSES)]})
    return {**parts, "test_batch": cifar_batch(test, seed=6), "batches.meta": names}


def write_cifar10(directory, train=30, test=20, *, archive=False):
    write_batches(directory, "cifar-10-batches-py", cifar10_batches(train, test), archive and "cifar-10-python.tar.gz")


def write_cifar100(directory, train=30):
    batches = {"train": cifar_batch(train, 7, "fine_labels", 100), "test": cifar_batch(10, 8, "fine_labels", 100)}
    write_batches(directory, "cifar-100-python", batches)


def write_batches(directory, folder, batches, archive=None):
    directory.mkdir(parents=True, exist_ok=True)
    if not archive:
        (directory / folder).mkdir()
        for name, content in batches.items():
            (directory / folder / name).write_bytes(content)
        return
    with tarfile.open(directory / archive, "w:gz") as tar:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_svhn(directory, train=30, test=20, extra=0):
    """MATLAB files; the digit 0 is called 10 in them."""
    directory.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": train, "test": test, "extra": extra}.items()):
        if count:
            digits = labels(count).astype(np.uint8)
            y = np.where(digits == 0, 10, digits)[:, None]
            x = pixels(count, seed=seed).transpose(1, 2, 3, 0)
            savemat(directory / f"{part}_32x32.mat", {"X": x, "y": y}, do_compression=True)


def write_pictures(directory, classes, each):
    """Picture files of several sizes and colours, in a folder for each class ("" for none)."""
    for number, name in enumerate(classes):
        (directory / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            colours = pixels(1, 40 + i, 50, seed=100 * number + i)[0]
            picture = Image.fromarray(colours)
            suffix = ("png", "JPEG")[i % 2]
            (picture.convert("L") if i % 3 == 2 else picture).save(
                directory / name / f"{name or 'picture'}_{i}.{suffix}"
            )


def write_imagenet(root, each=4):
    """ImageNet's validation part as torchvision leaves it: a folder for each class, and its own list of them."""
    classes = [f"n0000000{i}" for i in range(3)]
    write_pictures(root / "val", classes, each)
    torch.save(({name: (name,) for name in classes}, classes), root / "meta.bin")
