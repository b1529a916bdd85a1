"""Small data sets in the formats that the real ones come in: random pixels, labels that go round."""

import hashlib
import pickle

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


def write_npz(path, count, seed=0, *, side=32, channels=3, labelled=True, classes=CLASSES):
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"images": pixels(count, side, side, channels, seed)}
    np.savez(path, **arrays, **({"labels": labels(count, classes)} if labelled else {}))


def write_mnist(raw, train=30, test=20):
    """The four idx files; torchvision keeps them in MNIST/raw."""
    raw.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        arrays = {"images-idx3": pixels(count, 28, 28, 1)[..., 0], "labels-idx1": labels(count).astype(np.uint8)}
        for kind, array in arrays.items():
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())


def write_svhn(directory, extra=0):
    for seed, (part, count) in enumerate({"train": 30, "test": 20, "extra": extra}.items()):
        if count:
            write_npz(directory / f"svhn_{part}.npz", count, seed)


def write_cifar10(directory):
    for seed, (part, count) in enumerate({"train": 30, "test": 20}.items()):
        write_npz(directory / f"cifar10_{part}.npz", count, seed)


def write_cifar100(directory):
    write_npz(directory / "cifar100_train.npz", 30, seed=7, classes=100)


def write_official_cifar10(directory, monkeypatch):
    """The pickled batches, with torchvision's checksums set to theirs."""
    from torchvision.datasets import CIFAR10

    folder = directory / CIFAR10.base_folder
    folder.mkdir(parents=True)

    def written(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return name, hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch(name, count, seed):
        rows = pixels(count, seed=seed).transpose(0, 3, 1, 2).reshape(count, -1)
        return written(name, {"data": rows, "labels": labels(count).tolist()})

    monkeypatch.setattr(CIFAR10, "train_list", [batch(f"data_batch_{i}", 6, i) for i in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [batch("test_batch", 20, 6)])
    names, checksum = written("batches.meta", {"label_names": [str(i) for i in range(CLASSES)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": names, "key": "label_names", "md5": checksum})


def write_official_svhn(directory, monkeypatch):
    """MATLAB files, in which the digit 0 is called 10, with torchvision's checksums set to theirs."""
    from torchvision.datasets import SVHN

    entries = {}
    for part, count in {"train": 30, "test": 20}.items():
        path = directory / f"{part}_32x32.mat"
        digits = labels(count).astype(np.uint8)
        images = pixels(count).transpose(1, 2, 3, 0)
        savemat(path, {"X": images, "y": np.where(digits == 0, 10, digits)[:, None]})
        entries[part] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(SVHN, "split_list", entries)


def write_pictures(directory, classes, each):
    """Picture files of several sizes and colours, in a folder for each class ("" for none)."""
    for number, name in enumerate(classes):
        (directory / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            picture = Image.fromarray(pixels(1, 40 + i, 50, seed=100 * number + i)[0])
            file = directory / name / f"{name or 'picture'}_{i}.{('png', 'JPEG')[i % 2]}"
            (picture.convert("L") if i % 3 == 2 else picture).save(file)


def write_imagenet(root, each=4):
    """ImageNet's validation part as torchvision leaves it: a folder for each class, and its own list of them."""
    classes = [f"n0000000{i}" for i in range(3)]
    write_pictures(root / "val", classes, each)
    torch.save(({name: (name,) for name in classes}, classes), root / "meta.bin")
