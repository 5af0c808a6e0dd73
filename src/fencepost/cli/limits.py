"""Options that bound what a command reads or shows."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from fencepost.cli.units import parse_duration

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) *(B|KB|MB|GB)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}

DEFAULT_MAX_READ: Final = "256MB"


def parse_size(text: str) -> int:
    """Returns the bytes of a size such as 500KB, 256MB or 2GB."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size: write a number and a unit (64MB, 2GB)")
    return round(float(found[1]) * _UNITS[(found[2] or "").upper()])


def duration_option(text: str) -> Any:
    """An option whose value is a duration such as 10s; the command gets milliseconds."""
    return typer.Option(parser=parse_duration, metavar="DURATION", help=text, show_default=False)


MaxRead = Annotated[
    str,
    typer.Option(
        "--max-read",
        metavar="SIZE",
        help="Read at most this much from partitions, such as 64MB or 2GB.",
        show_default=True,
    ),
]
