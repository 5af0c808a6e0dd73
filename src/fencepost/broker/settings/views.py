"""Settings as DescribeConfigs returns them: value, source, and overridden values (KIP-226)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fencepost.broker.settings.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Source,
    Synonym,
    TopicConfig,
    is_sensitive,
)
from fencepost.broker.settings.kinds import Kind, Update
from fencepost.broker.settings.loggers import level_of, logger_names
from fencepost.broker.settings.tables import BROKER_SYNONYMS


class Row(NamedTuple):
    """One setting of one resource."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    synonyms: list[Synonym]
    kind: Kind | None
    """None for the level of a logger, for which Kafka returns no type."""
    doc: str
    is_sensitive: bool = False
    """Whether it is a secret, whose value is never shown."""


def describe_topic(broker: BrokerConfig, overrides: Mapping[str, str]) -> list[Row]:
    """All settings of a topic, its own and those it inherits from the broker."""
    config = TopicConfig(broker, overrides)
    rows = []
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        value = config.text_of(name)
        synonyms = broker.synonyms(BROKER_SYNONYMS[name][0]) if name in BROKER_SYNONYMS else []
        if name in overrides:
            synonyms.insert(0, Synonym(name, value, Source.TOPIC))
        source = synonyms[0].source if synonyms else Source.DEFAULT
        rows.append(Row(name, value, source, False, synonyms, setting.kind, setting.doc))
    return rows


def describe_broker(broker: BrokerConfig) -> list[Row]:
    """All settings of this broker, including those that were set but are ignored."""
    names = sorted(broker.given_names() | BROKER_SETTINGS.keys())
    return [_broker_row(broker, name, broker.synonyms(name)) for name in names]


def describe_cluster_default(broker: BrokerConfig) -> list[Row]:
    """The dynamic settings of all brokers, and no others."""
    rows = []
    for name in sorted(broker.dynamic_default):
        value = broker.dynamic_default[name]
        row = _broker_row(broker, name, [Synonym(name, value, Source.DYNAMIC_DEFAULT_BROKER)])
        rows.append(row if row.is_sensitive else row._replace(value=value))
    return rows


def describe_loggers() -> list[Row]:
    """The loggers of this broker and their effective levels."""
    return [
        Row(name, level_of(name), Source.BROKER_LOGGER, False, [], None, "")
        for name in logger_names()
    ]


def _broker_row(broker: BrokerConfig, name: str, synonyms: list[Synonym]) -> Row:
    setting = BROKER_SETTINGS.get(name)
    source = synonyms[0].source if synonyms else Source.DEFAULT
    value = broker.text_of(name)
    if is_sensitive(name):
        hidden = [each._replace(text=None) for each in synonyms]
        doc = "Accepted; no effect." if setting is None else setting.doc
        return Row(name, None, source, True, hidden, Kind.PASSWORD, doc, is_sensitive=True)
    if setting is None:
        return Row(name, value, source, True, synonyms, Kind.STRING, "Accepted; no effect.")
    read_only = setting.update is Update.READ_ONLY
    return Row(name, value, source, read_only, synonyms, setting.kind, setting.doc)
