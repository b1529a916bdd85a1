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
import resource, torch
from lightning_gep.gradients.heap import keep_freed_memory

def page_faults():
    for size in (10_000_000, 12_000_000, 11_000_000):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
print(page_faults())
keep_freed_memory(torch.device("cpu"))
print(page_faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "confstr") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc")
@pytest.mark.parametrize("set_by_user", [{}, {"MALLOC_TRIM_THRESHOLD_": "65536"}])
def test_a_block_that_was_freed_is_used_again_unless_the_user_has_decided(set_by_user):
    clean = {name: value for name, value in os.environ.items() if name not in SET_BY_USER}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env={**clean, **set_by_user}, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    pages = 4 * 11_000_000 // 4096
    assert before > pages / 10
    assert (after < pages / 20) is not bool(set_by_user)


def test_a_fit_keeps_it(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(fit_module, "keep_freed_memory", asked.append)
    trainer(tmp_path, strategy(mechanism="gp"), max_steps=1).fit(Classifier(), loader())
    assert asked == [torch.device("cpu")]
    assert not keep_freed_memory(torch.device("meta")), "memory of other devices is left to torch"
