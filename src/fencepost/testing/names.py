"""Refuses names that there are not, and suggests the nearest of those that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fencepost.base.failures import ConfigError


def nearest(what: str, name: object, names: Iterable[str]) -> str:
    """A sentence about a name that there is not, with the nearest of those that there are."""
    known = {_bare(each): each for each in names}
    close = difflib.get_close_matches(_bare(str(name)), known, 1, 0.5)
    return what + (f": did you mean {known[close[0]]!r}?" if close else ".")


def no_such(what: str, name: object, names: Iterable[str]) -> ConfigError:
    """A refusal of a name, which suggests the nearest of those that there are."""
    return ConfigError(nearest(what, name, names))


def _bare(name: str) -> str:
    """A name as it is compared: Kafka writes Txn in some names and transaction in others."""
    return name.lower().replace("_", "").replace("transaction", "txn")
