import pytest
import torch

# The tests work on small tensors, where waking a second thread costs more than it does.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)
