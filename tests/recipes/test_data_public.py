import numpy as np
import pytest

from lightning_gep.errors import ConfigurationError, MissingDataError
from lightning_gep.strategy.random_labels import RandomLabels
from recipes.data.digits import DigitsDataModule
from recipes.data.public import TestSamples, label_choice, public_dataset
from recipes.data.public_sources import Cifar100, ImageFolder, ImageNet
from recipes.data.records import drawn_rows
from tests import data_files
from tests.data_files import pixels

COLOUR, GREY = (3, 32, 32), (1, 28, 28)


def images(source, shape=COLOUR):
    return source.records(shape).inputs


def test_some_images_of_an_npz_are_drawn_by_a_seed(tmp_path):
    data_files.write_npz(tmp_path / "imagenet32_aux.npz", 20, labelled=False)
    chosen, again, other = (images(ImageNet(str(tmp_path), count=8, seed=seed)) for seed in (0, 0, 1))
    assert np.array_equal(chosen, again)
    assert not np.array_equal(chosen, other)
    everything = pixels(20).transpose(0, 3, 1, 2)
    assert np.array_equal(chosen, everything[drawn_rows(20, 8, seed=0)])
    assert np.array_equal(images(ImageNet(str(tmp_path), count=None)), everything)
    fewer = {image.tobytes() for image in images(ImageNet(str(tmp_path), count=4))}
    assert fewer < {image.tobytes() for image in chosen}


def test_imagenet_as_torchvision_leaves_it(tmp_path):
    data_files.write_imagenet(tmp_path / "imagenet", each=4)
    records = ImageNet(str(tmp_path), count=None).records(COLOUR)
    assert len(records) == 12
    assert records.labels == 4 * [0] + 4 * [1] + 4 * [2]
    with pytest.raises(
        ConfigurationError, match=r"torchvision cannot read ImageNet's train in .*use aux=imagenet_folder"
    ):
        ImageNet(str(tmp_path), count=None, split="train").records(COLOUR)


def test_a_folder_of_pictures_of_all_sizes_and_colours(tmp_path):
    data_files.write_pictures(tmp_path / "all", ["cat", "dog"], each=5)
    (tmp_path / "all" / "cat" / "notes.txt").write_text("not a picture")
    source = ImageFolder(str(tmp_path / "all"), count=None)
    for shape in (COLOUR, GREY):
        assert images(source, shape).shape == (10, *shape)
    assert source.records(COLOUR).labels == 5 * [0] + 5 * [1]
    data_files.write_pictures(tmp_path / "flat", [""], each=3)
    assert ImageFolder(str(tmp_path / "flat"), count=None).records(COLOUR).labels is None


def test_labels_are_drawn_afresh_or_those_of_the_source(tmp_path):
    data_files.write_npz(tmp_path / "imagenet32_aux.npz", 20)
    fresh = public_dataset(ImageNet(str(tmp_path), count=None), COLOUR, 10)
    assert isinstance(fresh, RandomLabels)
    assert len({tuple(label for _, label in fresh.__getitems__(list(range(20)))) for _ in range(5)}) > 1
    own = public_dataset(ImageNet(str(tmp_path), count=None, labels="true"), COLOUR, 10)
    assert [own[i][1] for i in range(20)] == 2 * list(range(10))


def test_labels_that_cannot_be_used_are_refused(tmp_path, small_data):
    data_files.write_npz(tmp_path / "imagenet32_aux.npz", 5, labelled=False)
    with pytest.raises(ConfigurationError, match=r"aux\.labels=true, but these public images have no labels"):
        public_dataset(ImageNet(str(tmp_path), count=None, labels=True), COLOUR, 10)
    with pytest.raises(ConfigurationError, match="labels of these public images go from 0 to 29, and the model has 10"):
        public_dataset(Cifar100(str(small_data), count=None, labels="true"), COLOUR, 10)
    assert [label_choice(value) for value in ("random", "true", True)] == ["random", "true", "true"]
    with pytest.raises(ConfigurationError, match="labels='rnadom' is not known"):
        TestSamples(labels="rnadom")
    with pytest.raises(ConfigurationError, match="labels=False is not known"):
        TestSamples(labels=False)


def test_the_digits_take_any_public_images_but_their_own(tmp_path):
    data_files.write_npz(tmp_path / "imagenet32_aux.npz", 20, labelled=False)
    module = DigitsDataModule(aux=ImageNet(str(tmp_path), count=8), aux_batch_size=8)
    batch, _ = next(iter(module.aux_dataloader()))
    assert batch.shape == (8, 1, 8, 8)
    with pytest.raises(ConfigurationError, match="aux=test_samples takes images from the test set of mnist"):
        DigitsDataModule(aux=TestSamples()).aux_dataloader()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ImageNet, r"ImageNet is not in directory='.*': put imagenet32_aux.npz there, .*aux=imagenet_folder"),
        (
            Cifar100,
            r"CIFAR-100 is not in directory='.*': put cifar100_aux.npz or the folder cifar-100-python .*aux.download",
        ),
        (ImageFolder, r"There are no images in directory='.*': put .jpg or .png files there"),
    ],
)
def test_missing_images_say_what_to_put_where(make, message, tmp_path):
    with pytest.raises(MissingDataError, match=message):
        make(str(tmp_path)).records(COLOUR)


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((5, 32, 32, 3), {"count": 6}, r"count=6 is above the 5 public images of imagenet"),
        ((5, 32, 32, 3), {"count": 0}, "count must be a whole number above 0, but it is 0"),
        ((5, 32, 32, 3), {"seed": -1}, "seed must be a whole number that is 0 or more, but it is -1"),
        ((4, 32, 32, 5), {"count": None}, "1 or 3 channels, but these have 5"),
        ((0, 32, 32, 3), {"count": None}, "There is no image in the file of imagenet. Get it again"),
    ],
)
def test_a_count_or_a_file_that_cannot_be_is_named(shape, settings, message, tmp_path):
    np.savez(tmp_path / "imagenet32_aux.npz", images=np.zeros(shape, np.uint8))
    with pytest.raises(ConfigurationError, match=message):
        ImageNet(str(tmp_path), **settings).records(COLOUR)


def test_a_picture_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    with pytest.raises(ConfigurationError, match=r"broken.png cannot be read as an image .*Remove or replace it"):
        ImageFolder(str(tmp_path), count=1).records(COLOUR)
