import os

# The tests work on small tensors, where waking a second thread costs more than it does; processes they start, too.
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines say that their processor has AMX, and kill the process that uses it: bf16 convolutions do.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A directory with every data set in its own format, a few images each."""
    from tests import data_files

    directory = tmp_path_factory.mktemp("data")
    data_files.write_mnist(directory / "MNIST" / "raw")
    data_files.write_svhn(directory, extra=10)
    data_files.write_cifar10(directory)
    data_files.write_cifar100(directory)
    data_files.write_npz(directory / "imagenet32_aux.npz", 20, labelled=False)
    data_files.write_pictures(directory / "imagenet", ["cat", "dog"], each=4)
    return directory
