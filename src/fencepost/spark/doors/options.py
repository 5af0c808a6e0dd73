"""The options of the writers of `format("fencepost")`: name, default, meaning; and their parser.

docs/reference/spark-options.md is generated from the table. Unknown names are refused with the
nearest one that exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.options import INT64_MAX, must_be, parse_boolean, parse_whole, suggest
from fencepost.spark.engine.read_topics import NO_TOPICS, ReadTopics
from fencepost.spark.ledger.rule import Overrides
from fencepost.spark.ledger.store import LedgerStore
from fencepost.spark.settings import SinkSettings, checked_id, read_settings

_SERVERS: Final = "kafka.bootstrap.servers"

NO_OVERWRITE: Final = (
    "a topic cannot be overwritten: records are only added to it, and deleted by its retention. "
    'Use mode("append"), or create another topic. Nothing was written'
)


class Writes(Enum):
    """Which writers an option is for."""

    BOTH = "both"
    STREAM = "streams"
    BATCH = "batches"


class WriteOption(NamedTuple):
    """One option, in its proper spelling."""

    name: str
    meaning: str
    default: str | None = None
    """The value that is parsed if the option is missing; None if there is none."""
    scope: Writes = Writes.BOTH


WRITE_OPTIONS: Final = (
    WriteOption(
        "transactionalId",
        "the name of this output: one per query, never changed; required for streams. A batch "
        "write uses `txnAppId` or a random name without it",
    ),
    WriteOption(
        "topic",
        "checks that all rows go to this topic; the topic itself is an argument of `route()`",
    ),
    WriteOption("ledgerTopic", "the compacted topic that holds the ledger", "fencepost-ledger"),
    WriteOption(
        "adopt",
        "write although the ledger is missing or belongs to another query; for one start, after "
        "you have checked the topics",
        "false",
    ),
    WriteOption(
        "takeOver",
        "the id of the query (or the `txnAppId`) that this one continues",
    ),
    WriteOption(
        "allowEmptyState",
        "let a stateful query continue another one although its state is new",
        "false",
        Writes.STREAM,
    ),
    WriteOption(
        "commitSourceOffsets",
        "`auto`: commit them if the checkpoint's files prove that all sources are topics of this "
        "cluster; `true`: refuse if they do not; `false`: never",
        "auto",
        Writes.STREAM,
    ),
    WriteOption(
        "mayWriteToSources",
        "write to a topic that the query reads, although its output is then its input",
        "false",
    ),
    WriteOption(
        "txnAppId", "the name of a repeatable write; with `txnVersion`", scope=Writes.BATCH
    ),
    WriteOption(
        "txnVersion",
        "the number of this write, 0 or more: the last one again writes nothing, a lower one is "
        "refused",
        scope=Writes.BATCH,
    ),
)

SET_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark adds to the options of a stream."""

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {option.name.lower(): option.name for option in WRITE_OPTIONS}
)
"""The proper spelling of each name, which is case-insensitive."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All options of a writer."""

    settings: SinkSettings
    transactional_id: str
    """Empty for a batch write that chooses a random one."""
    topic: str | None
    ledger_topic: str
    overrides: Overrides
    commit_source_offsets: bool | None
    app_id: str | None
    version: int | None
    checkpoint: str | None
    """Where the query has its checkpoint, if Spark says so."""
    may_write_to_sources: bool = False
    read: ReadTopics = NO_TOPICS
    """The topics that the query reads, as far as `route` knows them."""

    def ledger(self, transactional_id: str | None = None) -> LedgerStore:
        """The ledger of the transactional id."""
        name = transactional_id or self.transactional_id
        return LedgerStore(self.settings.client, name, self.ledger_topic)


def check_mode(*, overwrite: bool) -> None:
    """ConfigError unless rows are appended. Spark itself refuses its default mode, and ignore."""
    if overwrite:
        raise ConfigError(NO_OVERWRITE)


def read_write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Reads the options; ConfigError names the wrong one and what to write instead."""
    lower = {name.lower(): value for name, value in given.items()}
    values = _own_options(lower, streaming)
    settings = _settings(lower)
    app_id, version = _version(values)
    overrides = Overrides(
        adopt=parse_boolean("adopt", values["adopt"]),
        take_over=values.get("takeOver"),
        allow_empty_state=parse_boolean("allowEmptyState", values["allowEmptyState"]),
    )
    if values.get("topic") == values["ledgerTopic"]:
        raise ConfigError(
            f"topic {values['topic']!r} holds the ledger, and rows cannot go there: correct topic "
            "or ledgerTopic"
        )
    return WriteOptions(
        settings,
        _transactional_id(values, app_id, streaming),
        values.get("topic"),
        values["ledgerTopic"],
        overrides,
        _commit_source_offsets(values["commitSourceOffsets"]),
        app_id,
        version,
        lower.get("checkpointlocation"),
        parse_boolean("mayWriteToSources", values["mayWriteToSources"]),
    )


def _own_options(lower: Mapping[str, str], streaming: bool) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in lower.items():
        if name in NAMES:
            values[NAMES[name]] = value
        elif not name.startswith("kafka.") and not (streaming and name in SET_BY_SPARK):
            hint = suggest(name, [*NAMES.values(), _SERVERS])
            raise ConfigError(f"{name!r} is not an option of writing with format fencepost{hint}")
    for option in WRITE_OPTIONS:
        if option.name in values:
            _check_scope(option, streaming)
        elif option.default is not None:
            values[option.name] = option.default
    return values


def _check_scope(option: WriteOption, streaming: bool) -> None:
    if streaming and option.scope is Writes.BATCH:
        raise ConfigError(
            f"{option.name} is for df.write: in a stream the query id and the batch id of its "
            "checkpoint take its place"
        )
    if not streaming and option.scope is Writes.STREAM:
        raise ConfigError(f"{option.name} is for streams, and this is a batch write: leave it out")


def _settings(lower: Mapping[str, str]) -> SinkSettings:
    kafka = {name: value for name, value in lower.items() if name.startswith("kafka.")}
    servers = kafka.pop(_SERVERS, None)
    if servers is None:
        raise ConfigError(f"{_SERVERS} is needed: the brokers to ask, as host:port,host:port")
    return read_settings(servers, kafka, id_option="the option transactionalId")


def _transactional_id(values: Mapping[str, str], app_id: str | None, streaming: bool) -> str:
    found = values.get("transactionalId", app_id)
    if found is not None:
        return checked_id(found)
    if streaming:
        raise ConfigError(
            "transactionalId is needed: a name for this query's output that no other query uses"
        )
    return ""


def _version(values: Mapping[str, str]) -> tuple[str | None, int | None]:
    app_id, text = values.get("txnAppId"), values.get("txnVersion")
    if (app_id is None) != (text is None):
        missing = "txnVersion" if text is None else "txnAppId"
        raise ConfigError(
            f"{missing} is missing: txnAppId and txnVersion make a write repeatable together"
        )
    if app_id is None:
        return None, None
    return checked_id(app_id), parse_whole("txnVersion", text, least=0, most=INT64_MAX)


def _commit_source_offsets(text: str) -> bool | None:
    word = text.strip().lower()
    if word not in ("auto", "true", "false"):
        raise must_be("commitSourceOffsets", "auto, true or false", text)
    return None if word == "auto" else word == "true"
