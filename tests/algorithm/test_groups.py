import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_gep.algorithm.groups import ParameterGroups, allocate
from lightning_gep.errors import ConfigurationError
from recipes.models.resnet20 import ResNet20


def stage(width_in, width, blocks=3):
    return nn.Sequential(*[nn.Conv2d(width_in if i == 0 else width, width, 3, bias=False) for i in range(blocks)])


class ResNetLike(nn.Module):
    """ResNet20's tree: input layer with its norm, three stages, output layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, bias=False)
        self.norm1 = nn.GroupNorm(4, 16)
        self.layer1, self.layer2, self.layer3 = stage(16, 16), stage(16, 32), stage(32, 64)
        self.fc = nn.Linear(64, 10)


class BackboneAndHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = ResNetLike()
        self.head = nn.Linear(10, 2)


STAGES = ("conv1", "layer1", "layer2", "layer3", "fc")


def test_the_papers_five_groups_of_a_resnet_come_out_by_themselves_also_inside_other_modules():
    for module, prefix, more in ((ResNetLike(), "", ()), (BackboneAndHead(), "backbone.", ("head",))):
        groups = ParameterGroups.from_module(module, "tree")
        assert groups.names == (*(prefix + name for name in STAGES), *more)
        assert groups.members[0] == tuple(prefix + name for name in ("conv1.weight", "norm1.weight", "norm1.bias"))
    wrapped = ParameterGroups.from_module(nn.ModuleDict({"network": ResNetLike()}), "tree")
    assert wrapped.names == tuple(f"network.{name}" for name in STAGES)


def test_by_default_a_resnet_has_five_groups_of_about_equal_size():
    groups = ParameterGroups.from_module(ResNet20())
    assert groups.members == ParameterGroups.from_module(ResNet20(), 5).members
    assert groups.names[:3] == ("input.0", "stage2.2.convolution2", "stage3.1.convolution1")
    assert max(groups.sizes) < groups.num_parameters / 3


def test_balanced_groups_of_a_small_network_are_its_layers_each_with_its_norm():
    layers = nn.Sequential(nn.Linear(9, 4), nn.Linear(4, 40), nn.LayerNorm(40), nn.Linear(40, 3))
    members = ParameterGroups.from_module(layers).members
    assert members == (("0.weight", "0.bias"), ("1.weight", "1.bias", "2.weight", "2.bias"), ("3.weight", "3.bias"))


def test_no_balanced_group_has_nothing_but_vectors():
    shapes = {"a": (30, 30), "b": (900,), "c": (30, 30), "d": (900,)}
    module = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})
    assert ParameterGroups.from_module(module, 4).members == (("a",), ("b",), ("c",), ("d",))
    groups = ParameterGroups.from_module(module)
    assert groups.members == (("a", "b"), ("c", "d"))
    assert groups.names == ("a", "c")


def test_every_grouping_covers_every_trainable_parameter_once():
    module = ResNetLike()
    module.layer2.requires_grad_(False)
    trainable = sorted(name for name, p in module.named_parameters() if p.requires_grad)
    for grouping in ("balanced", "tree", "layer", "all", 1, 3, 7, {"first": "conv1*", "rest": ["*"]}):
        groups = ParameterGroups.from_module(module, grouping)
        assert sorted(name for names in groups.members for name in names) == trainable


def test_a_number_of_groups_is_even_and_a_layer_is_a_group():
    module = nn.Sequential(*[nn.Linear(10, 10) for _ in range(9)])
    assert ParameterGroups.from_module(module, 3).sizes == (330, 330, 330)
    assert ParameterGroups.from_module(nn.Linear(4, 2)).members == (("weight", "bias"),)
    names = ParameterGroups.from_module(ResNetLike(), "layer").names
    assert names[:3] == ("conv1", "norm1", "layer1.0")
    assert len(names) == 12


def test_tied_parameters_appear_once():
    module = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    module[1].weight = module[0].weight
    assert ParameterGroups.from_module(module).num_parameters == 25 + 5 + 5


@pytest.mark.parametrize("grouping", ["balanced", "tree", "layer", "all", 2])
def test_flatten_and_unflatten_are_inverse(grouping):
    module = ResNetLike()
    groups = ParameterGroups.from_module(module, grouping)
    tensors = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    several = groups.flatten({name: tensor.expand(7, *tensor.shape).bfloat16() for name, tensor in tensors.items()})
    assert (several.shape, several.dtype) == ((7, groups.num_parameters), torch.float32)
    flat = groups.flatten(tensors)
    assert flat.shape == (groups.num_parameters,)
    back = groups.unflatten(flat)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    start = 0
    for names, size in zip(groups.members, groups.sizes, strict=True):
        expected = torch.cat([tensors[name].reshape(-1) for name in names])
        assert torch.equal(flat[start : start + size], expected)
        start += size


@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=12), st.data())
def test_quotas_sum_to_k_and_fit_their_groups(sizes, data):
    k = data.draw(st.integers(1, min(sum(sizes), 5000)))
    quotas = allocate(k, sizes)
    assert sum(quotas) == k
    assert all(0 <= quota <= size for quota, size in zip(quotas, sizes, strict=True))
    roomy = [i for i, (quota, size) in enumerate(zip(quotas, sizes, strict=True)) if quota < size]
    ratios = [quotas[i] / math.sqrt(sizes[i]) for i in roomy]
    for i, ratio in zip(roomy, ratios, strict=True):
        assert ratio <= min(ratios) + 1 / math.sqrt(sizes[i]) + 1 / math.sqrt(min(sizes[j] for j in roomy))


@pytest.mark.parametrize(
    ("k", "sizes", "quotas"),
    [
        (1000, [100, 40_000, 90_000], (20, 392, 588)),
        (60, [100, 400, 900], (10, 20, 30)),
        (14, [4, 10], (4, 10)),
        (12, [4, 100], (2, 10)),
        (60, [4, 100], (4, 56)),
    ],
)
def test_quotas_follow_the_square_root_and_a_full_group_passes_its_excess_on(k, sizes, quotas):
    assert allocate(k, sizes) == quotas


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: allocate(0, [10]), r"k must be a whole number above 0, but it is 0.*mechanism='gp'"),
        (lambda: allocate(11, [4, 6]), r"k=11 basis vectors are more than the 10 trainable parameters. Use k=10"),
        (lambda: ParameterGroups.from_module(nn.Linear(2, 2), "stage"), r"groups='stage' is not known.*'tree'"),
        (lambda: ParameterGroups.from_module(nn.Linear(2, 2), 0), r"groups must be a whole number above 0"),
        (lambda: ParameterGroups.from_module(nn.ReLU()), r"no trainable parameters"),
        (lambda: ParameterGroups.from_module(nn.Linear(2, 2), {"w": "weight"}), r"no pattern for the parameter 'bias'"),
        (
            lambda: ParameterGroups.from_module(nn.Linear(2, 2), {"all": "*", "none": "conv*"}),
            r"groups\['none'\]='conv\*' matches no trainable parameter",
        ),
    ],
)
def test_bad_groups_are_explained(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()
