import subprocess
import sys

SCRIPT = """
import logging, os, subprocess, sys
from pathlib import Path
from lightning_gep.cli.console import output_into, terminal

print("first")
handler = logging.StreamHandler(sys.stderr)  # made before, as loggers of libraries are
with terminal() as console, output_into(Path("console.log")):
    print("by print")
    os.write(2, b"by descriptor\\n")
    handler.stream.write("by an old handler\\n")
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    console.print("on the terminal")
print("last")
with output_into(Path("console.log")):
    print("second attempt")
"""


def test_what_a_job_prints_goes_to_its_file_and_the_terminal_stays_in_reach(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout + done.stderr == "first\non the terminal\nlast\n"
    *first, second = (tmp_path / "console.log").read_text().splitlines()
    assert set(first) == {"by print", "by descriptor", "by an old handler", "by a child"}
    assert second == "second attempt", "written below the first"
