"""On an accelerator nothing in a step may wait for the device: tried on `meta`, where every such wait raises."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_gep.algorithm.basis import Basis
from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.groups import ParameterGroups
from lightning_gep.algorithm.noise import make_noise
from lightning_gep.algorithm.spectral import TensorSpectrum
from lightning_gep.algorithm.subspace import NoSubspace
from lightning_gep.gradients.functional import FunctionalGradients
from lightning_gep.privacy.release import BGEP, GEP, GP
from lightning_gep.strategy.exchange import Collectives
from lightning_gep.strategy.processes import Processes
from recipes.models.mnist_cnn import MnistCNN

META = torch.device("meta")


class OnMetaOnly(TorchDispatchMode):
    """Fails for an operation that mixes in a tensor of another device, which alone would not raise."""

    def __init__(self):
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        elsewhere = [tensor.device.type for tensor in tensors if tensor.device != META]
        assert not elsewhere, f"{function} has operands on {elsewhere}"
        result = function(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        assert all(tensor.device == META for tensor in made), f"{function} made a tensor elsewhere"
        return result


class GivenBasis:
    """A basis that is there already: its refresh may wait."""

    def __init__(self, basis):
        self.current = basis

    def at_step(self, step, anchors):
        return self.current


class WithoutOthers(Collectives):
    """Everything that several processes do on their devices, but for the communication itself."""

    def _reduced(self, tensor, purpose, by=None):
        assert tensor.device == META
        self.sent[purpose] += tensor.numel() * tensor.element_size()
        return tensor


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("mechanism", [GEP(1.0, 0.5), BGEP(1.0), GP(1.0)], ids=str)
def test_a_step_never_waits_for_the_device(mechanism, processes):
    with torch.device(META):
        network = MnistCNN()
        batch = (torch.empty(12, 1, 28, 28), torch.empty(12, dtype=torch.long))
    groups = ParameterGroups.from_module(network)
    rows = FunctionalGradients(network, lambda b: nn.functional.cross_entropy(network(b[0]), b[1]), groups)
    sizes, quotas = groups.sizes, groups.quotas(30)
    basis = Basis(tuple(torch.empty(k, p, device=META) for k, p in zip(quotas, sizes, strict=True)), defect=1e-6)
    source = GivenBasis(basis) if mechanism.uses_basis else NoSubspace(sum(sizes), torch.empty(0, device=META))
    exchange = WithoutOthers(Processes(0, processes, None, None), META) if processes > 1 else None
    halves = [tuple(leaf[part] for leaf in batch) for part in (slice(0, 6), slice(6, 12))]
    with OnMetaOnly() as mode:
        gradient, diagnostics = gradient_embedding_perturbation(
            anchors=lambda: pytest.fail("the basis is there"),
            private_gradients=(rows(half) for half in halves),
            subspace=source,
            release=mechanism.release(1.0, k=30, num_parameters=sum(sizes)),
            noise=make_noise("system"),
            expected_batch_size=12,
            step=3,
            charge=lambda: None,
            exchange=exchange,
        )
        tensors = groups.unflatten(gradient)
    assert mode.operations > 50
    numbers = 30 * mechanism.uses_basis + sum(sizes) * (not isinstance(mechanism, BGEP))
    assert exchange is None or exchange.sent == {"gradient": 4 * numbers}
    assert gradient.device == META
    assert gradient.shape == (sum(sizes),)
    assert diagnostics.records.device == META
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict(groups.shapes)
    of_the_host = torch.ones(())
    with pytest.raises(AssertionError, match="has operands on"), OnMetaOnly():
        torch.ones(3, device=META) + of_the_host


def test_what_processes_add_up_of_a_spectrum_stays_on_the_device():
    like = torch.empty(0, device=META)
    spectra = [TensorSpectrum.zero(sides, like) for sides in ((5, 7), (4, 3, 9), (6,))]
    with OnMetaOnly():
        for spectrum in spectra:
            spectrum.add(torch.empty(2, spectrum.energies.numel(), device=META), 0.1)
        total = torch.cat([part for spectrum in spectra for part in spectrum.packed()])
        assert total.shape == (15 + 28 + 35 + 10 + 6 + 45 + 108 + 6,)
        assert total.dtype == torch.float32
        for spectrum in spectra:
            total = spectrum.unpack(total)
    assert len(total) == 0
