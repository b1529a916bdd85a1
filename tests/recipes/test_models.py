from functools import partial

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.optim.lr_scheduler import ConstantLR

from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.gradients.ghost import GhostGradients
from lightning_gep.gradients.loop import LoopGradients
from recipes.data.digits import DigitsDataModule
from recipes.models import schedules
from recipes.models.augmentation import random_copies
from recipes.models.cifar_cnn import CifarCNN
from recipes.models.classifier import ImageClassifier
from recipes.models.linear_probe import LinearProbe
from recipes.models.mnist_cnn import MnistCNN
from recipes.models.resnet20 import ResNet20
from recipes.models.small_cnn import SmallCNN


def test_copies_are_shifted_and_mirrored_windows_of_their_image():
    torch.manual_seed(0)
    image = torch.arange(1.0, 1 + 3 * 8 * 8).view(1, 3, 8, 8)
    padded = nn.functional.pad(image, [4] * 4)
    windows = [padded[..., i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
    possible = [one for window in windows for one in (window, window.flip(3))]
    copies = random_copies(image, 200)
    found = [next(i for i, one in enumerate(possible) if torch.equal(one[0], copy)) for copy in copies]
    assert len(set(found)) > 80, "162 windows, each about as likely"


@pytest.mark.parametrize("backend", [FunctionalGradients, GhostGradients])
def test_the_gradient_of_a_record_is_the_mean_over_its_copies(backend):
    """One contribution, however many copies; records draw their own shifts."""
    torch.manual_seed(0)
    model = ImageClassifier(SmallCNN(), None, None, copies=3)
    groups = ParameterGroups.from_module(model)
    batch = (torch.randn(1, 1, 8, 8).repeat(4, 1, 1, 1), torch.full((4,), 3))
    rows = backend(model, lambda each: model.training_step(each, 0), groups)(batch)
    assert rows.shape == (4, groups.num_parameters)
    assert all(not torch.allclose(rows[0], row) for row in rows[1:])
    seen = []
    model.forward = lambda images: seen.append(images) or SmallCNN.forward(model.network, images)
    expected = LoopGradients(model, lambda each: model.training_step(each, 0), groups)((batch[0][:1], batch[1][:1]))
    images = seen[0].clone()
    model.copies = None
    each = LoopGradients(model, lambda one: model.training_step(one, 0), groups)((images, batch[1][:3]))
    torch.testing.assert_close(expected[0], each.mean(0), rtol=1e-4, atol=1e-6)


def rates(make_scheduler, epochs):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = make_scheduler(optimizer)
    seen = []
    for _ in range(epochs):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_schedules_follow_the_number_of_epochs():
    assert rates(partial(schedules.step, epochs=4), 4) == pytest.approx([2, 2, 0.2, 0.2])
    assert rates(partial(schedules.step, epochs=10, at=0.8, factor=0.5), 10) == pytest.approx([2] * 8 + [1] * 2)
    assert rates(partial(schedules.cosine, epochs=4), 4) == pytest.approx([2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5])


@pytest.mark.parametrize(
    ("network", "images", "sizes"),
    [
        (SmallCNN(), torch.randn(3, 1, 8, 8), (192, 4704, 1290)),
        (ResNet20(), torch.randn(3, 3, 32, 32), (432, 13824, 50688, 202752, 650)),
        (MnistCNN(), torch.randn(3, 1, 28, 28), (1040, 8224, 5130)),
        (LinearProbe(4096), torch.randn(3, 4096), (40960,)),
    ],
    ids=["small_cnn", "resnet20", "mnist_cnn", "linear_probe"],
)
def test_the_networks_have_the_papers_sizes_and_groups(network, images, sizes):
    assert network(images).shape == (3, 10)
    assert ParameterGroups.from_module(network, "tree").sizes == sizes
    alone = network(images[:1])
    assert torch.allclose(network(images)[:1], alone, atol=1e-5), "a record's logits depend on itself alone"


def test_a_model_with_fewer_classes_than_the_data_is_refused_before_any_step(tmp_path):
    model = ImageClassifier(
        SmallCNN(num_classes=5), partial(torch.optim.SGD, lr=0.5), partial(ConstantLR, factor=1.0), num_classes=5
    )
    trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"num_classes=5, but the data have 10 classes. Use model.num_classes=10"
    ):
        trainer.fit(model, DigitsDataModule())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ResNet20(norm_groups=3), "norm_groups.*3"),
        (lambda: MnistCNN(activation="softmax"), "activation.*softmax"),
        (lambda: LinearProbe(num_features=-1), "num_features.*-1"),
        (lambda: SmallCNN()(torch.zeros(2, 1, 28, 28)), "SmallCNN takes records of 1 × 8 × 8, but these have 1 × 28"),
        (lambda: ResNet20()(torch.zeros(2, 1, 28, 28)), "ResNet20 takes records of 3 × any size × any size, but these"),
        (lambda: LinearProbe(20)(torch.zeros(2, 3, 32, 32)), "LinearProbe takes records of 20, but these have 3 × 32"),
    ],
)
def test_a_network_that_cannot_be_built_says_which_value_and_one_that_does_not_fit_what_it_takes(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_the_small_network_for_cifar10_has_the_size_it_says_and_he_scaled_convolutions():
    network = CifarCNN()
    assert sum(p.numel() for p in network.parameters()) == 61_162
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    for layer in (part for part in network.modules() if isinstance(part, nn.Conv2d)):
        assert layer.weight.std().item() == pytest.approx((2 / (9 * layer.in_channels)) ** 0.5, rel=0.1)
