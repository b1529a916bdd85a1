"""One contender at one setting, in a process of its own: `python -m benchmarks.one gep resnet20 10 n=500 k=200`."""

import json
import logging
import os
import sys
import tempfile
import warnings
from dataclasses import asdict, replace

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.settings import SETTINGS

if __name__ == "__main__":
    contender, steps = sys.argv[1], int(sys.argv[3])
    changes = {name: int(value) if value.isdigit() else value for name, value in (a.split("=") for a in sys.argv[4:])}
    setting = replace(SETTINGS[sys.argv[2]], **changes)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # ledgers and cards go there
        print(json.dumps(asdict(CONTENDERS[contender](setting, steps))))
