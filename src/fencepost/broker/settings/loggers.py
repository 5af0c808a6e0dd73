"""The broker's loggers as Kafka's tools show them (the resource BROKER_LOGGER, KIP-412).

`root` is the logger `fencepost`: the broker may run inside another program, whose loggers its
clients must not change. A logger exists once its module is imported; a handler is imported by the
first request that it serves. Levels last until the process ends, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

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
"""Kafka's levels, the most severe first."""


def logger_names() -> list[str]:
    """All loggers of the broker that exist now."""
    # A copy: another thread may import a module at the same time.
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
    """The effective level of a logger, its own or inherited."""
    effective = _logger(name).getEffectiveLevel()
    return next((word for word, level in LEVELS.items() if effective >= level), "TRACE")


def set_level(name: str, level: str | None) -> None:
    """Sets the level of a logger; None makes it inherit its level."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_TOP if name == ROOT else name)
