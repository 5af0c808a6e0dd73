"""The options of a view.

    view        records, transactions, transaction_state, producers or offsets
    path        log folders, separated by commas; or kafka.bootstrap.servers for a broker
    columns     the columns to read, separated by commas; all but headers if it is missing

From a broker, the other options of the source choose topics and offsets. From folders, `subscribe`,
`subscribePattern` and `assign` choose among the partitions that are there; without one of them all
topics are read that are not internal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fencepost.base.failures import ConfigError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.base.options import suggest
from fencepost.spark.source.option_table import NAMES
from fencepost.spark.source.options import (
    SourceOptions,
    Subscription,
    choose_columns,
    read_source_options,
    read_subscription,
)
from fencepost.spark.views.schemas import COLUMNS, View

_SUBSCRIPTIONS: Final = ("subscribe", "subscribepattern", "assign")
_OF_FOLDERS: Final = frozenset({"view", "path", "columns", *_SUBSCRIPTIONS})

INTERNAL_TOPIC: Final = {
    View.TRANSACTION_STATE: TRANSACTION_STATE_TOPIC,
    View.OFFSETS: CONSUMER_OFFSETS_TOPIC,
}
"""The views that read one topic, whatever else is there."""


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """All options of a view; `source` is None if it reads folders, and `paths` empty if not."""

    view: View
    columns: tuple[str, ...]
    paths: tuple[str, ...]
    subscription: Subscription | None
    source: SourceOptions | None


def is_view(given: Mapping[str, str]) -> bool:
    """Whether the options ask for a view."""
    return any(name.lower() == "view" for name in dict(given))


def read_view_options(given: Mapping[str, str]) -> ViewOptions:
    """Reads the options; ConfigError names the wrong one and what to write instead."""
    values = {name.lower(): value for name, value in dict(given).items()}
    view = _view(values["view"])
    columns = choose_columns(values.get("columns"), COLUMNS[view])
    paths = tuple(path.strip() for path in values.get("path", "").split(",") if path.strip())
    topic = INTERNAL_TOPIC.get(view)
    chosen = [name for name in _SUBSCRIPTIONS if name in values]
    if topic is not None and chosen:
        raise ConfigError(f"{chosen[0]} has no meaning for view={view.value}, which reads {topic}")
    if topic is not None:
        values["subscribe"] = topic
    if not paths:
        return ViewOptions(view, columns, (), None, _source_options(values))
    _check_names(values)
    named = {NAMES[name]: values[name] for name in _SUBSCRIPTIONS if name in values}
    subscription = read_subscription(named) if named else None
    return ViewOptions(view, columns, paths, subscription, None)


def _view(text: str) -> View:
    try:
        return View(text.strip().lower())
    except ValueError:
        known = [view.value for view in View]
        hint = suggest(text, known)
        raise ConfigError(f"view must be one of {', '.join(known)}, not {text!r}{hint}") from None


def _check_names(values: Mapping[str, str]) -> None:
    for name in values:
        if name.startswith("kafka."):
            raise ConfigError(f"{name} has no meaning with path: folders are read without a broker")
        if name not in _OF_FOLDERS:
            hint = suggest(name, sorted(_OF_FOLDERS))
            raise ConfigError(f"{name!r} is not an option of a view of folders{hint}")


def _source_options(values: Mapping[str, str]) -> SourceOptions:
    if "kafka.bootstrap.servers" not in values:
        raise ConfigError("a view needs path (log folders) or kafka.bootstrap.servers (a broker)")
    if "kafka.isolation.level" in values:
        raise ConfigError("kafka.isolation.level has no meaning for a view, which shows everything")
    own = {name: value for name, value in values.items() if name not in ("view", "path", "columns")}
    return read_source_options(own | {"kafka.isolation.level": "read_uncommitted"}, streaming=False)
