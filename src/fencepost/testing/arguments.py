"""Messages of `fencepost serve` in terms of the arguments of `Broker(...)` and `Cluster(...)`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_ARGUMENTS: Final = {
    "--listen is": "host and port are",
    "with --listen": "with host= and port=",
    "with --data": "with data=",
    "--metrics is": "metrics is",
    "with --metrics": "with metrics=",
    "--brokers is": "brokers is",
    ", or add --allow-remote if the network is yours": "",
}

QUICK_CONFIG: Final[Mapping[str, object]] = {"group.initial.rebalance.delay.ms": 0}
"""Settings that tests want: a group's first rebalance does not wait for more members."""


def in_words_of_arguments(sentence: str) -> str:
    """Rewrites a message in terms of arguments instead of the command line."""
    for option, argument in _ARGUMENTS.items():
        sentence = sentence.replace(option, argument)
    return sentence


def path_or_none(given: str | os.PathLike[str] | None) -> str | None:
    """An argument that may name a path."""
    return None if given is None else os.fspath(given)


def bracketed(host: str) -> str:
    """A host as it is written before a port."""
    return f"[{host}]" if ":" in host else host
