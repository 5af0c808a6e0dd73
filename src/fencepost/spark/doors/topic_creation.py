"""`create_topics={"partitions": 4}`: creates missing topics, for trying things out.

Off by default: a misspelt name would become a topic. Only topics that the sink knows before the
rows are created: `topic=`, and the keys of `sink.write`. A topic that is there stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError
from fencepost.base.options import parse_whole, suggest
from fencepost.client.admin import NewTopic
from fencepost.spark.connection import cluster_of

if TYPE_CHECKING:
    from fencepost.client.options import ClientOptions
    from fencepost.spark.ways.row_writer import Part

log = logging.getLogger(__name__)

_KEYS: Final = ("partitions", "replication_factor", "configs")
_MOST_PARTITIONS: Final = 100_000
_MOST_REPLICAS: Final = 32_767


class TopicCreation:
    """Creates the topics of a sink, each once."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        self._wanted = None if given is None else _read(given)
        self._known: set[str] = set()

    def ensure(self, options: ClientOptions, parts: Iterable[Part]) -> None:
        """Creates the topics of these parts that are missing."""
        if self._wanted is None:
            return
        cluster = cluster_of(options)
        for topic in (part.topic for part in parts):
            if topic is None or topic in self._known:
                continue
            if cluster.find_topic(topic) is None:
                new = NewTopic(topic, *self._wanted)
                cluster.create_topics([new], exist_ok=True)
                log.info("created topic %r with %d partitions", topic, new.partitions)
            self._known.add(topic)


def _read(given: Any) -> tuple[int, int, Mapping[str, str]]:
    if not isinstance(given, Mapping) or "partitions" not in given:
        raise ConfigError(
            f"create_topics is {given!r}, and must be a mapping with the number of partitions, "
            'for instance {"partitions": 4}'
        )
    for key in given:
        if key not in _KEYS:
            raise ConfigError(f"{key!r} is not a key of create_topics{suggest(str(key), _KEYS)}")
    configs = given.get("configs") or {}
    if not isinstance(configs, Mapping):
        raise ConfigError(f"configs of create_topics is {configs!r}, and must be a mapping")
    return (
        parse_whole("partitions", given["partitions"], least=1, most=_MOST_PARTITIONS),
        _replicas(given.get("replication_factor")),
        {str(name): str(value) for name, value in configs.items()},
    )


def _replicas(given: Any) -> int:
    if given is None:
        return NewTopic("").replication_factor
    return parse_whole("replication_factor", given, least=1, most=_MOST_REPLICAS)
