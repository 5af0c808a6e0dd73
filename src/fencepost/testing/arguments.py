"""Messages of `fencepost serve` in terms of the arguments of `Broker(...)` and `Cluster(...)`."""

from __future__ import annotations

from typing import Final

_ARGUMENTS: Final = {
    "--listen is": "host and port are",
    "with --listen": "with host= and port=",
    "with --data": "with data=",
    "--brokers is": "brokers is",
    ", or add --allow-remote if the network is yours": "",
}


def in_words_of_arguments(sentence: str) -> str:
    """Rewrites a message in terms of arguments instead of the command line."""
    for option, argument in _ARGUMENTS.items():
        sentence = sentence.replace(option, argument)
    return sentence


def bracketed(host: str) -> str:
    """A host as it is written before a port."""
    return f"[{host}]" if ":" in host else host
