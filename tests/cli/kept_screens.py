"""Screens as a person sees them, kept as text.

`assert_screen` compares what a command printed with a file in tests/cli/screens. Names, times and
durations differ from run to run, so they are replaced first. FENCEPOST_WRITE_SCREENS=1 writes the
files: look at them before you commit them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "screens"

_REPLACED = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"), "2026-01-01 00:00:00.000"),
    (re.compile(r"^\d{4}-\d\d-\d\d UTC", re.MULTILINE), "2026-01-01 UTC"),
    (re.compile(r"^\d\d:\d\d:\d\d\.\d{3}", re.MULTILINE), "00:00:00.000"),
    (re.compile(r"│  <?\d+(\.\d+)? m?s$", re.MULTILINE), "│  N ms"),
    (re.compile(r"\bafter <?\d+(\.\d+)? m?s\b"), "after N ms"),
    (re.compile(r"\bopen for [\d,]+ ms\b"), "open for N ms"),
    (re.compile(r"__transaction_state-\d+"), "__transaction_state-N"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


def normalised(text: str, names: Mapping[str, str]) -> str:
    """The text with names and times that are the same in every run."""
    for name, stand_in in names.items():
        # The same length, so that columns keep their width.
        text = text.replace(name, stand_in)
    for pattern, stand_in in _REPLACED:
        text = pattern.sub(stand_in, text)
    return text


def assert_screen(name: str, text: str, names: Mapping[str, str]) -> None:
    """The screen is the kept one."""
    shown = normalised(text, names)
    file = FOLDER / f"{name}.txt"
    if os.environ.get("FENCEPOST_WRITE_SCREENS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(shown, "utf-8")
    assert shown == file.read_text("utf-8")
