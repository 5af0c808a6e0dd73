"""How large a batch each topic accepts: `max.message.bytes` and `segment.bytes`.

The sink requests them once per run for the topics that it knows before the rows (DescribeConfigs).
If it lacks the permission, if the rows name the topic, or if the setting is lowered while the query
runs, a broker refuses a batch (MESSAGE_TOO_LARGE). The attempt is then repeated with smaller ones,
where Kafka's own producer would split them. A batch of one record cannot become smaller: the record
is refused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError
from fencepost.client.admin import ResourceType
from fencepost.records.batch import HEADER_BYTES
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import NOTHING_WRITTEN, BatchTooLarge, RowRefused

if TYPE_CHECKING:
    from fencepost.client.options import ClientOptions
    from fencepost.spark.settings import SinkSettings

log = logging.getLogger(__name__)

SETTINGS: Final = ("max.message.bytes", "segment.bytes")


class TopicLimits:
    """The size limits of topics, as far as one run of a query has learned them."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._described: dict[str, int | None] = {}
        self._refused: dict[str, int] = {}
        """The limits learned from refused batches."""

    def batch_bytes(self, topic: str | None) -> int:
        """The maximum bytes of records per batch. `topic` is None if the rows name theirs."""
        if topic is None:
            limits = list(self._refused.values())
        else:
            known = (self._describe(topic), self._refused.get(topic))
            limits = [limit for limit in known if limit is not None]
        wanted = self._settings.batch_bytes
        return max(1, min([wanted, *(limit - self._around(limit) for limit in limits)]))

    def learn(self, problem: BatchTooLarge) -> None:
        """Lowers the limit after a topic refused a batch; RowRefused if it had one record."""
        if problem.records <= 1:
            raise self.refusal(problem)
        topic, size_bytes = problem.topic, problem.size_bytes
        self._described.pop(topic, None)
        limit = self._describe(topic)
        # The topic's setting is right, unless the topic has refused less than that.
        learned = limit if limit is not None and limit < size_bytes else size_bytes // 2
        before = self._refused.get(topic)
        self._refused[topic] = learned if before is None or learned < before else before // 2
        log.info("%s; its batches have at most %d bytes from now on", problem, self._refused[topic])

    def _around(self, limit: int) -> int:
        """The bytes of the header, and for records that compression enlarges."""
        return HEADER_BYTES + (limit // 256 + 64 if self._settings.codec else 0)

    def _describe(self, topic: str) -> int | None:
        if topic not in self._described:
            self._described[topic] = _describe_limit(self._settings.client, topic)
        return self._described[topic]

    def refusal(self, problem: BatchTooLarge) -> RowRefused:
        """The error for a record that is too large for its topic."""
        limit = self._describe(problem.topic)
        known = "" if limit is None else f", which is {limit}"
        return RowRefused(
            f"topic {problem.topic!r} does not accept a record that makes a batch of "
            f"{problem.size_bytes} bytes: it is larger than max.message.bytes of the topic{known}. "
            f"Raise max.message.bytes, or make the value smaller. {NOTHING_WRITTEN}"
        )


def _describe_limit(options: ClientOptions, topic: str) -> int | None:
    try:
        found = cluster_of(options).describe_configs(ResourceType.TOPIC, topic, SETTINGS)
    except FencepostError as problem:
        # No permission, or no such topic, which the first row will report.
        log.debug("the settings of topic %r are not known: %s", topic, problem)
        return None
    values = [found[name].value for name in SETTINGS if name in found]
    return min((int(value) for value in values if value), default=None)
