"""One contender at one setting, in a process of its own: `python -m benchmarks.one gep resnet20 10`."""

import json
import logging
import os
import sys
import tempfile
import warnings
from dataclasses import asdict

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.settings import SETTINGS

if __name__ == "__main__":
    contender, setting, steps = sys.argv[1], SETTINGS[sys.argv[2]], int(sys.argv[3])
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # ledgers and cards go there
        print(json.dumps(asdict(CONTENDERS[contender](setting, steps))))
