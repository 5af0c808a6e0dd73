"""The loggers of this process as Kafka's tools see them (the resource BROKER_LOGGER, KIP-412).

`root` is the logger `fencepost`, above all of the broker's: the broker may run inside another
program, whose own loggers are none of its clients' business. A logger is there once its module is
imported; a handler's is imported with the first request that it serves. Levels last until the
process ends, as in Kafka.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = "root"
_TOP: Final = "fencepost"

LEVELS: Final[Mapping[str, int]] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG // 2,
}
"""Kafka's levels, the most important first."""


def logger_names() -> list[str]:
    """Every logger of the broker that is there now."""
    # A copy: another thread may import a module meanwhile.
    known = list(logging.root.manager.loggerDict.items())
    return [
        ROOT,
        *sorted(
            name
            for name, logger in known
            if name.startswith(f"{_TOP}.") and isinstance(logger, logging.Logger)
        ),
    ]


def level_of(name: str) -> str:
    """The level at which a logger speaks, its own or the one that it inherits."""
    effective = _logger(name).getEffectiveLevel()
    return next((word for word, level in LEVELS.items() if effective >= level), "TRACE")


def set_level(name: str, level: str | None) -> None:
    """Gives a logger a level of its own; None makes it inherit its level again."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_TOP if name == ROOT else name)
