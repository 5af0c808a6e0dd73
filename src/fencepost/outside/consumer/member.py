"""One member of a consumer group, over confluent-kafka, which reads only what it is told to start.

librdkafka would begin to read a partition as soon as the group assigns it, and from the group's
committed offset. Here an assignment is answered with an empty one. A partition is read after
`start`, from an offset of the caller's. What the group assigned is in `assigned`, what is read is
in `started`; both change only inside `receive`, `start` and `stop`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from fencepost.base.errors import RETRIABLE, ErrorCode
from fencepost.outside.consumer.rule import Found, Partition
from fencepost.outside.failures import BatchMisused, ExtraMissing, KafkaRefused

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""How long to wait for metadata and offsets before the group is served again."""

USUAL_SESSION_MS: Final = 45_000
"""The default of librdkafka, and of Apache Kafka for `group.protocol=consumer`."""

_OURS: Final = ("group.id", "auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store")
_PASSING: Final = (
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_TIMED_OUT",
    "_WAIT_COORD",
    "_STATE",
    "_MAX_POLL_EXCEEDED",
)
"""Errors of librdkafka that end by themselves, or by the next rebalance."""
_OUT_OF_RANGE: Final = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


class Waiting(Exception):  # noqa: N818 - not an error.
    """Kafka has no answer now: serve the group, then ask again."""


def require_confluent_kafka() -> None:
    """Raises ExtraMissing if this Python has no confluent-kafka."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise ExtraMissing(
            "PostgresConsumer reads Kafka through confluent-kafka, which this Python cannot use: "
            "pip install confluent-kafka"
        ) from None


class Member:
    """A member of one group, subscribed to topics."""

    def __init__(self, topics: Iterable[str], group: str, config: Mapping[str, Any]) -> None:
        require_confluent_kafka()
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka.admin import AdminClient

        if taken := config.keys() & _OURS:
            raise BatchMisused(
                f"{min(taken)!r} is not yours to set: the database has the position, and the "
                "parameters `group` and `start` say the rest"
            )
        settings = {"isolation.level": "read_committed", **config}
        if settings.get("group.protocol") != "consumer":
            settings.setdefault("partition.assignment.strategy", "cooperative-sticky")
        self._is_incremental = "cooperative" in settings.get(
            "partition.assignment.strategy", "cooperative"
        )
        self.group = group
        self.session_seconds = float(settings.get("session.timeout.ms", USUAL_SESSION_MS)) / 1_000
        """How long the group waits for a member that died."""
        self._topics = list(topics)
        self.assigned: set[Partition] = set()
        self.has_joined = False
        """Whether the group has answered with an assignment, which may be empty."""
        self.started: dict[Partition, int] = {}
        """With the offsets that they were started from."""
        try:
            # It would warn of each setting that only consumers have.
            self._admin = AdminClient({**settings, "log_level": 3})
            ours = dict(zip(_OURS, (group, "error", False, False), strict=True))
            self._consumer = Consumer(settings | ours)
            self._consumer.subscribe(
                self._topics,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        except (KafkaException, ValueError, TypeError) as problem:
            raise KafkaRefused(f"confluent-kafka refuses these settings: {problem}") from None

    def receive(self, most: int, seconds: float) -> list[Any]:
        """Serves the group, and returns up to `most` messages: the first one within `seconds`."""
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        # Without waiting for more: a batch is what is there.
        more = self._consumer.consume(most - 1, 0) if most > 1 else []
        return [message for message in (first, *more) if self._is_record(message)]

    def start(self, offsets: Mapping[Partition, int]) -> None:
        """Begins to read these partitions."""
        if self._is_incremental:
            self._consumer.incremental_assign(_positions(offsets))
            self.started.update(offsets)
        else:
            self._assign(self.positions() | dict(offsets))

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Stops to read these partitions; the group still assigns them to this member."""
        stopped = [each for each in partitions if self.started.pop(each, None) is not None]
        if stopped and self._is_incremental:
            self._consumer.incremental_unassign(_positions(dict.fromkeys(stopped, 0)))
        elif stopped:
            self._assign(self.positions())

    def _assign(self, offsets: dict[Partition, int]) -> None:
        """Replaces what is read; librdkafka forgets how far the others were."""
        self._consumer.assign(_positions(offsets))
        self.started = offsets

    def positions(self) -> dict[Partition, int]:
        """The next offset of each started partition.

        It is behind the last message received, and behind control records and aborted ones that
        follow, as far as they were seen.
        """
        found = self._consumer.position(_positions(self.started))
        reached = {Partition(each.topic, each.partition): each.offset for each in found}
        # It is negative before the first message.
        return {each: max(reached[each], begin) for each, begin in self.started.items()}

    def report(self, offsets: Mapping[Partition, int]) -> None:
        """Commits offsets to the group, for lag tools. It does not wait, and may fail."""
        from confluent_kafka import KafkaException

        try:
            if offsets:
                self._consumer.commit(offsets=_positions(offsets), asynchronous=True)
        except KafkaException as problem:
            log.debug("offsets of group %s were not reported: %s", self.group, problem)

    def confirm(self, offsets: Mapping[Partition, int]) -> bool:
        """Whether the coordinator still has this member in its generation of the group.

        It refuses the offset commit of any other; in the same generation the assignment is the
        same.
        """
        from confluent_kafka import KafkaException

        try:
            done = self._consumer.commit(offsets=_positions(offsets), asynchronous=False)
        except KafkaException as problem:
            log.info("group %s does not confirm an assignment: %s", self.group, problem)
            return False
        return all(each.error is None for each in done)

    def find(self, partitions: Collection[Partition]) -> dict[Partition, Found]:
        """What Kafka says of these partitions; raises Waiting."""
        ids = self.topic_ids({each.topic for each in partitions})
        return {each: Found(ids[each.topic], *self._ends(each)) for each in partitions}

    def _ends(self, partition: Partition) -> tuple[int, int]:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            asked = TopicPartition(*partition)
            answer = self._consumer.get_watermark_offsets(asked, timeout=ANSWER_SECONDS)
        except KafkaException as problem:
            raise explain(problem.args[0], f"the offsets of {partition}") from None
        if answer is None:
            raise Waiting
        log_start, end = answer
        return log_start, end

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of these topics now; raises Waiting."""
        return {topic: str(view.topic_id) for topic, view in self._describe(topics).items()}

    def others(self) -> list[Partition]:
        """Partitions of the topics that this member does not read; raises Waiting.

        Those of a subscription by a regular expression are not looked up.
        """
        found = self._describe(name for name in self._topics if not name.startswith("^"))
        every = {Partition(topic, p.id) for topic, view in found.items() for p in view.partitions}
        return sorted(every - self.started.keys())

    def _describe(self, topics: Iterable[str]) -> dict[str, Any]:
        from confluent_kafka import KafkaException, TopicCollection

        if not (named := list(topics)):
            return {}
        asked: dict[str, Future[Any]] = self._admin.describe_topics(
            TopicCollection(named), request_timeout=ANSWER_SECONDS
        )
        found = {}
        for topic, answer in asked.items():
            try:
                found[topic] = answer.result()
            except KafkaException as problem:
                raise explain(problem.args[0], f"topic {topic!r}") from None
        return found

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close()
        # It has nothing to close, and ends with its last reference.
        del self._admin

    def _is_record(self, message: Any) -> bool:
        """Whether it is a record, and no error; raises what does not end by itself."""
        error = message.error()
        if error is None:
            return True
        if error.name() in _OUT_OF_RANGE:
            # The next claim says what is wrong.
            self.stop([Partition(message.topic(), message.partition())])
            return False
        problem = explain(error, f"reading as group {self.group!r}")
        if isinstance(problem, KafkaRefused):
            raise problem
        log.info("group %s: %s", self.group, error.str())
        return False

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self.has_joined = True
        self.assigned.update(Partition(each.topic, each.partition) for each in partitions)
        if self._is_incremental:
            consumer.incremental_assign([])
        else:
            consumer.assign([])

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        """The group gave this member up: it joins again."""
        self.has_joined = False
        self._on_revoke(consumer, partitions)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        gone = [Partition(each.topic, each.partition) for each in partitions]
        self.assigned.difference_update(gone)
        stopped = [each for each in gone if self.started.pop(each, None) is not None]
        if self._is_incremental:
            consumer.incremental_unassign(_positions(dict.fromkeys(stopped, 0)))
        else:
            consumer.unassign()


def explain(error: Any, what: str) -> Waiting | KafkaRefused:
    """The exception for a KafkaError: a topic that is not there does not come back by itself."""
    lasting = error.code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if error.name() in _PASSING or (error.code() in RETRIABLE and not lasting):
        return Waiting()
    return KafkaRefused(f"Kafka refuses {what}: {error.str()} ({error.name()})")


def _positions(offsets: Mapping[Partition, int]) -> list[Any]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(*each, offset) for each, offset in offsets.items()]
