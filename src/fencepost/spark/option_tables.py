"""Tables of options (name, meaning, default), and how a reader or a writer is given its own.

docs/reference/spark-options.md is generated from the tables. Names are case-insensitive; unknown
ones are refused with the nearest one that exists. Those that begin with `kafka.` are the client's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.options import suggest

SERVERS: Final = "kafka.bootstrap.servers"


class Scope(Enum):
    """Which readers or writers an option is for."""

    BOTH = "both"
    STREAM = "streams"
    BATCH = "batches"


class Option(NamedTuple):
    """One option, in its proper spelling."""

    name: str
    meaning: str
    default: str | None = None
    """The value that is parsed if the option is missing; None if there is none."""
    batch_default: str | None = None
    """The default in batches, where it is another one."""
    scope: Scope = Scope.BOTH

    def default_in(self, *, streaming: bool) -> str | None:
        """The default of one kind of reader."""
        return self.default if streaming or self.batch_default is None else self.batch_default


def spellings(table: Iterable[Option]) -> dict[str, str]:
    """The proper spelling of each name."""
    return {option.name.lower(): option.name for option in table}


def own_options(
    given: Mapping[str, str],
    table: Collection[Option],
    what: str,
    misplaced: Callable[[Option], None],
    *,
    streaming: bool,
    ignored: Collection[str] = (),
) -> dict[str, str]:
    """The options of a table under their proper spelling, with defaults for those left out.

    Names in `given` are in lower case. `misplaced` is called for each that is not for this kind.
    """
    names = spellings(table)
    for name in given:
        if name not in names and not name.startswith("kafka.") and name not in ignored:
            hint = suggest(name, [*names.values(), SERVERS])
            raise ConfigError(f"{name!r} is not an option of {what}{hint}")
    values: dict[str, str] = {}
    for option in table:
        value = given.get(option.name.lower())
        if value is None:
            value = option.default_in(streaming=streaming)
        elif option.scope is (Scope.BATCH if streaming else Scope.STREAM):
            misplaced(option)
        if value is not None:
            values[option.name] = value
    return values
