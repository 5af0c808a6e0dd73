"""Reads the lines of a trace.

A process that was killed may have left its last line incomplete: that one is ignored. Any other
line that is no JSON, and any other format or version, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fencepost.base.failures import FencepostError
from fencepost.records.trace import FORMAT, VERSION, Body


def read_trace(path: str) -> Iterator[Body]:
    """Yields all lines, the opening ones too; FencepostError for what is no trace."""
    try:
        with open(path, encoding="utf-8") as file:
            yield from _lines(path, file)
    except OSError as problem:
        raise FencepostError(f"{path} cannot be read: {problem.strerror}.") from problem
    except UnicodeDecodeError:
        raise FencepostError(_no_trace(path, "it is no text")) from None


def _lines(path: str, texts: Iterator[str]) -> Iterator[Body]:
    is_first = True
    for number, text in enumerate(texts, start=1):
        if not text.endswith("\n"):
            return  # Its writer was killed.
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise FencepostError(_no_trace(path, f"line {number} is no JSON object"))
        if "format" in line or is_first:
            _check(path, line)
        is_first = False
        yield line


def _check(path: str, line: Body) -> None:
    if line.get("format") != FORMAT:
        raise FencepostError(_no_trace(path, "its first line does not name the format"))
    if line.get("version") != VERSION:
        raise FencepostError(
            f"{path} has version {line.get('version')!r} of the trace format, and this fencepost "
            f"reads version {VERSION}. Use the fencepost that wrote it."
        )


def _no_trace(path: str, reason: str) -> str:
    return (
        f"{path} is no trace: {reason}. Write one with `fencepost tap --out FILE` or "
        "`fencepost serve --trace FILE`."
    )
