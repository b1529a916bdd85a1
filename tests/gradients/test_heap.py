"""Freed memory is kept for the next microbatch: the system does not have to bring it page by page again."""

import os
import subprocess
import sys

import pytest
import torch

from lightning_gep.gradients.heap import SET_BY_USER, keep_freed_memory
from lightning_gep.strategy import fit as fit_module
from tests.toys import Classifier, loader, strategy, trainer

PROGRAM = """
import resource, sys, torch
from lightning_gep.gradients.heap import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    keep_freed_memory(torch.device("cpu"))
for size in (10_000_000, 12_000_000, 11_000_000):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how, **environment):
    clean = {name: value for name, value in os.environ.items() if name not in SET_BY_USER}
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(os, "confstr") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc")
class TestOnGlibc:
    def test_a_block_that_was_freed_is_used_again(self):
        pages = 4 * 11_000_000 // 4096
        assert page_faults("as it is") > pages / 2
        assert page_faults("keep") < pages / 20

    def test_what_the_user_has_set_stands(self):
        assert page_faults("keep", MALLOC_TRIM_THRESHOLD_="65536") > 1000


def test_memory_of_other_devices_is_left_to_torch():
    assert not keep_freed_memory(torch.device("meta"))


def test_a_fit_keeps_it(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(fit_module, "keep_freed_memory", asked.append)
    trainer(tmp_path, strategy(mechanism="gp"), max_steps=1).fit(Classifier(), loader())
    assert asked == [torch.device("cpu")]
