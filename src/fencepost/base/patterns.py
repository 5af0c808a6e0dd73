"""Regular expressions that are matched with what clients choose, in the syntax of RE2.

RE2 never backtracks, so a client cannot stall the broker, as it could with Python's `re`: neither
with a pattern (ListTransactions, KIP-1152, which Kafka matches with RE2/J) nor with a name that one
is matched with (`ssl.principal.mapping.rules`). The library (google-re2, extra `re2`) is optional:
its wheels do not cover musl and older systems. Without it the broker does not offer
ListTransactions v2, the version that has the pattern, and refuses to start with such rules.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

from fencepost.base.limits import MAX_PATTERN_MEMORY_BYTES


class Pattern(Protocol):
    """A compiled pattern."""

    @property
    def groups(self) -> int:
        """How many groups it captures."""

    def fullmatch(self, text: str, /) -> object | None:
        """Return None unless the whole text matches."""

    def sub(self, replacement: Callable[[Any], str], text: str, /) -> str:
        """Replace what matches by what is returned for each match."""


@functools.cache
def is_available() -> bool:
    """Whether google-re2 is installed."""
    return importlib.util.find_spec("re2") is not None


def compile_pattern(text: str, *, captures: bool = False) -> Pattern:
    """Compile a pattern; ValueError for one that RE2 rejects or that is too large."""
    import re2

    options = re2.Options()
    options.log_errors = False  # RE2 would write them to stderr.
    options.never_capture = not captures
    options.max_mem = MAX_PATTERN_MEMORY_BYTES
    try:
        compiled: Pattern = re2.compile(text, options)
    except re2.error as problem:
        why = problem.args[0]
        raise ValueError(why.decode() if isinstance(why, bytes) else str(why)) from problem
    re2.purge()  # Its cache keeps 128 patterns alive, and a client chooses their size.
    return compiled
