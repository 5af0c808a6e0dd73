"""Patterns of transactional ids (KIP-1152), in the syntax of RE2.

Kafka matches them with RE2/J. RE2 never backtracks, so a client cannot stall the broker with a
pattern, as it could with Python's `re`. The library (google-re2, extra `re2`) is optional: its
wheels do not cover musl and older systems. Without it the broker does not offer ListTransactions
v2, the version that has the pattern.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Protocol

from fencepost.base.limits import MAX_PATTERN_MEMORY_BYTES


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str, /) -> object | None:
        """Return None unless the whole text matches."""


@functools.cache
def is_available() -> bool:
    """Whether google-re2 is installed."""
    return importlib.util.find_spec("re2") is not None


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern; ValueError for one that RE2 rejects or that is too large."""
    import re2

    options = re2.Options()
    options.log_errors = False  # RE2 would write them to stderr.
    options.never_capture = True
    options.max_mem = MAX_PATTERN_MEMORY_BYTES
    try:
        compiled: Pattern = re2.compile(text, options)
    except re2.error as problem:
        raise ValueError(str(problem)) from problem
    re2.purge()  # Its cache keeps 128 patterns alive, and a client chooses their size.
    return compiled
