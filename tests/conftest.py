import os

# The tests work on small tensors, where waking a second thread costs more than it does; processes they start, too.
os.environ["OMP_NUM_THREADS"] = "1"

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
