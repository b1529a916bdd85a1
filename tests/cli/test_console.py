import subprocess
import sys

SETUP = "import logging, os, subprocess, sys; from pathlib import Path; from lightning_gep.cli.console import *\n"


def output_of(tmp_path, script):
    """What the script printed where it was started, and what is in console.log."""
    done = subprocess.run([sys.executable, "-c", SETUP + script], cwd=tmp_path, capture_output=True, text=True)
    return done.stdout + done.stderr, (tmp_path / "console.log").read_text()


def test_everything_printed_inside_goes_to_the_file_and_nothing_after(tmp_path):
    seen, written = output_of(
        tmp_path,
        """
print("first")
handler = logging.StreamHandler(sys.stderr)  # made before, as loggers of libraries are
with output_into(Path("console.log")):
    print("by print")
    os.write(2, b"by descriptor\\n")
    handler.stream.write("by an old handler\\n")
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
print("last")
""",
    )
    assert seen == "first\nlast\n"
    assert set(written.splitlines()) == {"by print", "by descriptor", "by an old handler", "by a child"}


def test_the_terminal_stays_in_reach_of_who_asked_for_it_first(tmp_path):
    seen, written = output_of(
        tmp_path,
        """
with terminal() as console, output_into(Path("console.log")):
    console.print("seen")
    print("not seen")
""",
    )
    assert seen == "seen\n"
    assert written == "not seen\n"


def test_a_second_attempt_is_written_below_the_first(tmp_path):
    _, written = output_of(
        tmp_path,
        """
for attempt in (1, 2):
    with output_into(Path("console.log")):
        print("attempt", attempt)
""",
    )
    assert written == "attempt 1\nattempt 2\n"
