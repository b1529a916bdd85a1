"""What a user sees of a run in a terminal of 80 columns."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

RUN = """
import sys
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning_gep import PrivacyMonitor
from tests.toys import Classifier, loader, strategy, trainer

bar = {"tqdm": TQDMProgressBar, "rich": RichProgressBar}[sys.argv[1]]()
used = strategy(mechanism="gp", generator="system")
shown = {"enable_progress_bar": True, "callbacks": [bar, PrivacyMonitor()]}
trainer(sys.argv[2], used, **shown).fit(Classifier(), loader(batch_size=10))
"""


def shown_in_a_terminal(command, columns):
    """Everything that is written, without colours and movements of the cursor."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    unset = {"COLUMNS", "LINES"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {"TERM": "xterm"}
    child = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    written = b""
    with contextlib.suppress(OSError):  # raised when the child has closed its end
        while True:
            written += os.read(reader, 65536)
    os.close(reader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
    assert child.wait(timeout=60) == 0, text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("bar", ["rich", "tqdm"])
def test_the_bar_with_epsilon_fits_eighty_columns(bar, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", RUN, bar, str(tmp_path)]
    lines = re.split(r"[\r\n]+", shown_in_a_terminal(command, columns=80))
    # A message that is printed meanwhile may follow the bar without a new line.
    bars = [line.split("`Trainer")[0] for line in lines if line.startswith("Epoch ")]
    assert len(bars) > 5
    assert max(map(len, bars)) <= 80
    assert re.search(r"ε[:=] ?\d", bars[-1]), bars[-1]
    assert not [line for line in lines if line.startswith("   ") and re.search(r"\d\.\d", line[40:])], "wrapped"
