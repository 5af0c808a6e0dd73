"""Screens of commands as a person sees them, kept as text in tests/cli/screens.

A command runs on a pseudo-terminal of a given width. What differs between runs (times, ports,
producer ids) is replaced, and so is the width of table columns that follows from it.
FENCEPOST_KEEP_SCREENS=1 writes the files anew; look at them before you commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Final

from tools.fencepost_process import ROOT

SCREENS: Final = Path(__file__).parent / "screens"
_DURATION: Final = re.compile(r"<?\d+(\.\d+)? (ms|s|min|h|d)\b( \d+ (s|min|h))?")
_CLOCK: Final = re.compile(r"\b\d\d:\d\d:\d\d\b")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC")


def on_terminal(*arguments: str, columns: int = 80, answer: str = "") -> tuple[int, str]:
    """Runs a command on a terminal; returns its exit code and everything on the screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "fencepost", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    if answer:
        os.write(ours, answer.encode())
    shown = bytearray()
    with contextlib.suppress(OSError):  # The last reader of the terminal has gone.
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r\n", "\n")
    return process.wait(60), text


def assert_screen(name: str, text: str, **names: str) -> None:
    """Compares a screen with the kept one; `names` are replaced by their keys."""
    for word, value in names.items():
        text = text.replace(value, f"<{word}>")
    text = _MOMENT.sub("<moment>", text)
    text = _CLOCK.sub("<clock>", text)
    text = _DURATION.sub("<duration>", text)
    text = "\n".join(re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() for line in text.splitlines())
    path = SCREENS / f"{name}.txt"
    if os.environ.get("FENCEPOST_KEEP_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text(), f"{path.name} differs"
