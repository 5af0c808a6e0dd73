"""The options of the writers of `format("fencepost")`: name, default, meaning; and their parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fencepost.base.arguments import checked_topic
from fencepost.base.failures import ConfigError
from fencepost.base.options import INT64_MAX, must_be, parse_boolean, parse_whole
from fencepost.spark.engine.read_topics import NO_TOPICS, ReadTopics
from fencepost.spark.ledger.rule import Overrides
from fencepost.spark.ledger.store import LedgerStore
from fencepost.spark.option_tables import SERVERS, Option, Scope, own_options
from fencepost.spark.settings import SinkSettings, checked_id, read_settings

NO_OVERWRITE: Final = (
    "a topic cannot be overwritten: records are only added to it, and deleted by its retention. "
    'Use mode("append"), or create another topic. Nothing was written'
)


WRITE_OPTIONS: Final = (
    Option(
        "transactionalId",
        "the name of this output: one per query, never changed; required for streams. A batch "
        "write uses `txnAppId` or a random name without it",
    ),
    Option(
        "topic",
        "checks that all rows go to this topic; the topic itself is an argument of `route()`",
    ),
    Option("ledgerTopic", "the compacted topic that holds the ledger", "fencepost-ledger"),
    Option(
        "adopt",
        "write although the ledger is missing or belongs to another query; for one start, after "
        "you have checked the topics",
        "false",
    ),
    Option(
        "takeOver",
        "the id of the query (or the `txnAppId`) that this one continues",
    ),
    Option(
        "allowEmptyState",
        "let a stateful query continue another one although its state is new",
        "false",
        scope=Scope.STREAM,
    ),
    Option(
        "commitSourceOffsets",
        "`auto`: commit them if the checkpoint's files prove that all sources are topics of this "
        "cluster; `true`: refuse if they do not; `false`: never",
        "auto",
        scope=Scope.STREAM,
    ),
    Option(
        "mayWriteToSources",
        "write to a topic that the query reads, although its output is then its input",
        "false",
    ),
    Option("txnAppId", "the name of a repeatable write; with `txnVersion`", scope=Scope.BATCH),
    Option(
        "txnVersion",
        "the number of this write, 0 or more: the last one again writes nothing, a lower one is "
        "refused",
        scope=Scope.BATCH,
    ),
)

SET_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark adds to the options of a stream."""


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
    values = own_options(
        lower,
        WRITE_OPTIONS,
        "writing with format fencepost",
        _misplaced,
        streaming=streaming,
        ignored=SET_BY_SPARK if streaming else (),
    )
    settings = _settings(lower)
    app_id, version = _version(values)
    overrides = Overrides(
        adopt=parse_boolean("adopt", values["adopt"]),
        take_over=values.get("takeOver"),
        allow_empty_state=parse_boolean("allowEmptyState", values["allowEmptyState"]),
    )
    for name in ("topic", "ledgerTopic"):
        if name in values:
            checked_topic(name, values[name])
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


def _misplaced(option: Option) -> None:
    if option.scope is Scope.BATCH:
        raise ConfigError(
            f"{option.name} is for df.write: in a stream the query id and the batch id of its "
            "checkpoint take its place"
        )
    raise ConfigError(f"{option.name} is for streams, and this is a batch write: leave it out")


def _settings(lower: Mapping[str, str]) -> SinkSettings:
    kafka = {name: value for name, value in lower.items() if name.startswith("kafka.")}
    servers = kafka.pop(SERVERS, None)
    if servers is None:
        raise ConfigError(f"{SERVERS} is needed: the brokers to ask, as host:port,host:port")
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
