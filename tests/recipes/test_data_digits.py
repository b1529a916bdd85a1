import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from lightning_gep import RandomLabels
from lightning_gep.errors import ConfigurationError
from recipes.data.digits import NUM_TEST, NUM_TRAIN, NUM_VALIDATION, DigitsDataModule


class Items(Dataset):
    def __init__(self, item, length=1000):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.item


def digits(**settings):
    module = DigitsDataModule(**settings)
    module.setup()
    return module


def fingerprints(dataset):
    """Counts of equal images, so that sets of records can be compared."""
    return {image.numpy().tobytes() for image in dataset.tensors[0]}


def test_the_splits_share_no_record_and_leave_none_out():
    module = digits()
    parts = module.train, module.validation, module.test
    assert [len(part) for part in parts] == [NUM_TRAIN, NUM_VALIDATION, NUM_TEST] == [1257, 180, 360]
    together = set().union(*(fingerprints(part) for part in parts))
    assert len(together) == sum(len(part) for part in parts) == 1797


def test_the_test_images_are_the_same_for_every_seed_and_the_validation_images_are_not():
    first, again, other = digits(seed=0), digits(seed=0), digits(seed=1)
    assert torch.equal(first.test.tensors[0], other.test.tensors[0])
    assert torch.equal(first.train.tensors[0], again.train.tensors[0])
    assert fingerprints(first.validation) != fingerprints(other.validation)
    assert not fingerprints(other.train) & fingerprints(first.test)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number above 0, but it is 0"),
        ({"batch_size": 1258}, "batch_size=1258 is above the 1257 training images"),
        ({"aux_batch_size": -1}, "aux_batch_size must be a whole number above 0, but it is -1"),
    ],
)
def test_a_value_that_cannot_work_is_named(setting, message):
    with pytest.raises(ConfigurationError, match=message):
        DigitsDataModule(**setting)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("x", ("x", None)),
        (("x",), ("x", None)),
        (("x", "y"), ("x", None)),
        (("x", "y", "weight"), ("x", None, "weight")),
        (["x", "y"], ["x", None]),
    ],
)
def test_random_labels_replace_the_label_and_nothing_else(item, expected):
    labelled = RandomLabels(Items(item), num_classes=5)[0]
    assert type(labelled) is type(expected)
    assert type(labelled[1]) is int
    assert [entry for i, entry in enumerate(labelled) if i != 1] == [e for i, e in enumerate(expected) if i != 1]


def test_random_labels_are_uniform_fresh_at_every_read_and_follow_torchs_generator():
    """Ranks can agree on them."""
    dataset, draws = RandomLabels(Items(torch.zeros(1), length=5000), num_classes=10), []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        draws.append(torch.tensor([dataset[i][1] for i in range(len(dataset))]))
    assert (torch.bincount(draws[0], minlength=10) - 500).abs().max() < 120  # 5.6 standard deviations
    assert 0.075 < (draws[0] == draws[1]).float().mean() < 0.125
    assert torch.equal(draws[0], draws[2])


def test_random_labels_refuse_what_they_cannot_label():
    with pytest.raises(ConfigurationError, match="num_classes must be a whole number above 0, but it is 0"):
        RandomLabels(Items("x"), num_classes=0)
    with pytest.raises(ConfigurationError, match=r"which entry of a dictionary \(image, digit\) is the label"):
        RandomLabels(Items({"image": 1, "digit": 2}), num_classes=2)[0]

    class Stream(IterableDataset):
        def __iter__(self):
            yield "x"

    with pytest.raises(ConfigurationError, match="needs a dataset with __len__ and __getitem__, but Stream"):
        RandomLabels(Stream(), num_classes=2)
