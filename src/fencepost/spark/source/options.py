"""The options of `format("fencepost")`: those of Spark's `kafka` format, under the same names.

Names are case-insensitive. What Spark rejects is rejected here, before anything is read; what Spark
only warns of (a limit per trigger where there are no triggers) is a warning here; unknown names are
rejected too, with the nearest name that exists. Differences: the default isolation is
read_committed, `startingOffsets` may be "committed" (of the group `kafka.group.id`), and `columns`
names the columns to read. `option_table.py` has all names, defaults and meanings.
"""

from __future__ import annotations

import json
import logging
import platform
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.ids import TopicPartition
from fencepost.base.options import INT32_MAX, INT64_MAX, parse_boolean, parse_whole
from fencepost.client.options import ClientOptions, read_options
from fencepost.spark.offsets import PartitionOffsets, from_layout
from fencepost.spark.option_tables import SERVERS, Option, Scope, own_options
from fencepost.spark.settings import EXCHANGES
from fencepost.spark.source.columns import COLUMNS
from fencepost.spark.source.option_table import KAFKA_OPTIONS, NAMES, SOURCE_OPTIONS

log = logging.getLogger(__name__)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
COMMITTED: Final = "committed"

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""The two words in offsets that are given as JSON."""

REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets",
    "key.deserializer": "keys are read as binary: cast the column",
    "value.deserializer": "values are read as binary: cast the column",
    "enable.auto.commit": "Spark keeps the offsets in its checkpoint; commit_source_offsets of "
    "the sink commits them",
    "interceptor.classes": "there are no interceptors here",
}
"""Consumer options that would have no effect, and why."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: a word, offsets, one time, or a time per partition."""

    word: str | None = None
    offsets: PartitionOffsets | None = None
    timestamp_ms: int | None = None
    timestamps: PartitionOffsets | None = None

    @property
    def stays(self) -> bool:
        """Whether it resolves to the same offsets every time, as long as nothing is deleted."""
        if self.offsets is not None:
            return LATEST_OFFSET not in self.offsets.values()
        return self.word in (None, EARLIEST)


class Subscription(NamedTuple):
    """Which partitions are read; one of the three is set."""

    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a reader."""

    client: ClientOptions
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...] | None
    starting: Bound
    ending: Bound
    latest_if_no_time_matches: bool
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    group: str | None
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    max_tasks: int | None
    whole_transactions: bool
    create_topics: int | None
    retries: int
    retry_pause_ms: int
    poll_timeout_ms: int
    may_send_secrets: bool
    """Whether Spark may send passwords of the brokers to other hosts in the clear."""
    planned_on: str
    """The host that read the options, from which they travel to the tasks."""

    @property
    def start_stays(self) -> bool:
        """Whether the start resolves to the same offsets every time."""
        return self.starting.stays and not self.latest_if_no_time_matches


def read_source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Reads the options; ConfigError names the wrong one and what to write instead."""
    given = {name.lower(): value for name, value in given.items()}
    values = own_options(given, SOURCE_OPTIONS, "format fencepost", _misplaced, streaming=streaming)
    client = _client_options(given)
    starting, ending = _bound(values, "starting"), _bound(values, "ending")
    if not streaming:
        _check_batch_bounds(starting, ending)
    _check_order(values, "minOffsetsPerTrigger", "maxOffsetsPerTrigger")
    _check_order(values, "minPartitions", "maxTasks")
    return SourceOptions(
        client=client,
        **read_subscription(values)._asdict(),
        starting=starting,
        ending=ending,
        latest_if_no_time_matches=_starts_at_latest(values),
        fail_on_data_loss=parse_boolean("failOnDataLoss", values["failOnDataLoss"]),
        columns=_columns(values),
        group=given.get("kafka.group.id"),
        max_offsets=_optional_number(values, "maxOffsetsPerTrigger"),
        min_offsets=_optional_number(values, "minOffsetsPerTrigger"),
        max_delay_ms=_duration_ms(values["maxTriggerDelay"]),
        min_partitions=_optional_number(values, "minPartitions"),
        max_records_per_partition=_optional_number(values, "maxRecordsPerPartition"),
        max_tasks=_optional_number(values, "maxTasks"),
        whole_transactions=_whole_transactions(values, client),
        create_topics=_create_topics(values),
        retries=_number(values, "fetchOffset.numRetries"),
        retry_pause_ms=_number(values, "fetchOffset.retryIntervalMs"),
        poll_timeout_ms=_number(values, "kafkaConsumer.pollTimeoutMs"),
        may_send_secrets=_exchange(values) == "plain",
        planned_on=platform.node(),
    )


def _misplaced(option: Option) -> None:
    if option.scope is Scope.BATCH:
        raise ConfigError(
            f"{option.name} cannot be set for a stream, which has no end: use it with spark.read"
        )
    log.warning("%s is without effect in spark.read: it is for spark.readStream", option.name)


def _client_options(given: Mapping[str, str]) -> ClientOptions:
    kafka = {
        name[len("kafka.") :]: value
        for name, value in given.items()
        if name.startswith("kafka.") and name not in NAMES
    }
    servers = kafka.pop("bootstrap.servers", None)
    if servers is None:
        raise ConfigError(f"{SERVERS} is needed: the brokers to ask, as host:port,host:port")
    for name, instead in REFUSED.items():
        if name in kafka:
            raise ConfigError(f"kafka.{name} cannot be set: {instead}")
    for option in KAFKA_OPTIONS:
        if option.default is not None:
            kafka.setdefault(option.name.removeprefix("kafka."), option.default)
    return read_options(servers, kafka)


def read_subscription(values: Mapping[str, str]) -> Subscription:
    """Reads `subscribe`, `subscribePattern` or `assign`."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(given) != 1:
        found = f"not {len(given)} of them" if given else "and none was"
        raise ConfigError(f"one of subscribe, subscribePattern and assign must be given, {found}")
    topics, pattern, assigned = None, None, None
    match given[0]:
        case "subscribe":
            topics = tuple(t.strip() for t in values["subscribe"].split(",") if t.strip())
            _require(topics, "subscribe must name at least one topic")
        case "subscribePattern":
            pattern = values["subscribePattern"].strip()
            try:
                re.compile(pattern)
            except re.error as problem:
                raise ConfigError(
                    f"subscribePattern is not a regular expression: {problem}"
                ) from None
            _require(pattern, "subscribePattern must not be empty")
        case _:
            assigned = _assigned(values["assign"])
    return Subscription(topics, pattern, assigned)


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    layout = _json("assign", text)
    try:
        found = tuple(
            sorted(TopicPartition(t, int(p)) for t, indexes in layout.items() for p in indexes)
        )
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f'assign must look like {{"topic": [0, 1]}}, not like {text!r}') from None
    _require(found, "assign must name at least one partition")
    return found


def _require(value: object, sentence: str) -> None:
    if not value:
        raise ConfigError(sentence)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as problem:
        raise ConfigError(f"{name} is not JSON: {problem}") from None


def _bound(values: Mapping[str, str], which: str) -> Bound:
    """As in Spark, one time wins over times per partition, and those over offsets."""
    if (name := f"{which}Timestamp") in values:
        return Bound(timestamp_ms=parse_whole(name, values[name], least=0, most=INT64_MAX))
    if (name := f"{which}OffsetsByTimestamp") in values:
        times = _layout(name, values[name], 0, "a time in milliseconds, 0 or later")
        return Bound(timestamps=times)
    name = f"{which}Offsets"
    text = values[name].strip()
    words = (EARLIEST, LATEST, COMMITTED) if which == "starting" else (LATEST,)
    if text.lower() in words:
        return Bound(word=text.lower())
    if not text.startswith("{"):
        raise ConfigError(f"{name} must be {', '.join(words)} or JSON, not {text!r}")
    # Numbers below that have other meanings in ListOffsets (-3: the record with the largest
    # timestamp).
    meant = "an offset, -2 for earliest or -1 for latest"
    return Bound(offsets=_layout(name, text, EARLIEST_OFFSET, meant))


def _layout(name: str, text: str, least: int, meant: str) -> PartitionOffsets:
    try:
        found = from_layout(_json(name, text))
    except ValueError as problem:
        raise ConfigError(f"{name}: {problem}") from None
    for tp, number in found.items():
        if not least <= number <= INT64_MAX:
            raise ConfigError(f"{name} of {tp} is {number}; it must be {meant}")
    return found


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    """Rejects bounds that cannot be a range, whatever the topics hold."""
    first, last = starting.offsets or {}, ending.offsets or {}
    if starting.word == LATEST or LATEST_OFFSET in first.values():
        raise ConfigError("startingOffsets cannot be latest in spark.read: there would be no rows")
    if EARLIEST_OFFSET in last.values():
        raise ConfigError("endingOffsets cannot be earliest (-2): there would be no rows")
    if starting.offsets is not None and ending.offsets is not None:
        _check_pairs("Offsets", first, last)
    if starting.timestamps is not None and ending.timestamps is not None:
        _check_pairs("OffsetsByTimestamp", starting.timestamps, ending.timestamps)


def _check_pairs(name: str, first: PartitionOffsets, last: PartitionOffsets) -> None:
    """Both bounds must name the same partitions, and the end must not be before the start."""
    if unpaired := sorted(first.keys() ^ last.keys()):
        raise ConfigError(
            f"{unpaired[0]} is in only one of starting{name} and ending{name}: name it in both"
        )
    for place in sorted(first):
        if first[place] > last[place] >= 0:
            raise ConfigError(
                f"starting{name} of {place} is {first[place]}, after its ending{name} {last[place]}"
            )


def _starts_at_latest(values: Mapping[str, str]) -> bool:
    word = values["startingOffsetsByTimestampStrategy"].strip().lower()
    if word not in ("error", LATEST):
        raise ConfigError(
            f"startingOffsetsByTimestampStrategy must be error or latest, not {word!r}"
        )
    return word == LATEST


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    chosen = choose_columns(values.get("columns"), COLUMNS)
    if parse_boolean("includeHeaders", values["includeHeaders"]) and "headers" not in chosen:
        return (*chosen, "headers")
    return chosen


def choose_columns(text: str | None, known: Collection[str]) -> tuple[str, ...]:
    """The columns that `columns` names, in the order of `known`; all but headers without it."""
    if text is None:
        return tuple(name for name in known if name != "headers")
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    _require(wanted, "columns must name at least one column")
    for name in wanted:
        if name.lower() not in map(str.lower, known):
            raise ConfigError(f"columns has {name!r}, and there are {', '.join(known)}")
    return tuple(each for each in known if each.lower() in map(str.lower, wanted))


def _number(values: Mapping[str, str], name: str) -> int:
    return parse_whole(name, values[name], least=1, most=INT64_MAX)


def _optional_number(values: Mapping[str, str], name: str) -> int | None:
    return _number(values, name) if name in values else None


def _check_order(values: Mapping[str, str], least: str, most: str) -> None:
    if least in values and most in values and _number(values, least) > _number(values, most):
        raise ConfigError(f"{least} ({values[least]}) must not exceed {most} ({values[most]})")


def _whole_transactions(values: Mapping[str, str], client: ClientOptions) -> bool:
    is_wanted = parse_boolean("wholeTransactions", values["wholeTransactions"])
    if is_wanted and client.isolation_level != "read_committed":
        raise ConfigError(
            "wholeTransactions needs kafka.isolation.level=read_committed, the default: without it "
            "records of open transactions are read"
        )
    return is_wanted


def _exchange(values: Mapping[str, str]) -> str:
    word = values["exchange"].strip().lower()
    if word not in EXCHANGES:
        raise ConfigError(f"exchange must be one of {', '.join(EXCHANGES)}, not {word!r}")
    return word


def _create_topics(values: Mapping[str, str]) -> int | None:
    if "createTopics" not in values:
        return None
    if "subscribePattern" in values:
        raise ConfigError(
            "createTopics needs subscribe or assign: a pattern does not name the topics to create"
        )
    return parse_whole("createTopics", values["createTopics"], least=1, most=INT32_MAX)


_UNITS_MS: Final = {
    "us": 1e-3,
    "": 1,
    "ms": 1,
    "s": 1e3,
    "m": 6e4,
    "min": 6e4,
    "h": 36e5,
    "d": 864e5,
}


def _duration_ms(text: str) -> int:
    """A time as Spark writes it: a number and its unit, milliseconds without one."""
    found = re.fullmatch(r"(\d+)(us|ms|s|m|min|h|d|)", text.strip().lower())
    if found is None:
        raise ConfigError(f"maxTriggerDelay must be a time such as 30s or 15m, not {text!r}")
    return int(int(found[1]) * _UNITS_MS[found[2]])
