"""What is in a cluster: topics and records with their fates, transactions, groups; for tests.

    broker.create_topic("refunds", partitions=2)
    broker.produce("payments", ("s-1", "12.50"), ("s-2", "7.00"))
    ...                                                    # run the service
    assert {record.key for record in broker.committed("refunds")} == {b"s-1", b"s-2"}
    assert not broker.open_transactions()

All of it goes over the wire, with a client of its own for each call: nothing stays open, and it
works for any broker (`Contents("host:9092")`). The faults of a test do not apply to this client.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import NO_TIMESTAMP, TopicPartition
from fencepost.broker.faults.faults import EXEMPT_CLIENT
from fencepost.records.fates import Fate, fates_when_decided
from fencepost.testing.names import nearest

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView
    from fencepost.client.blocking import Cluster as Client
    from fencepost.client.group_admin import MemberView
    from fencepost.records.batch import SealedBatch
    from fencepost.records.opened import Record as PlainRecord

Text = str | bytes
Given = Text | tuple[Text | None, Text | None]
"""A value, or a key and a value. Text is written as UTF-8."""

_OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
_VISIBLE: Final = frozenset({Fate.COMMITTED, Fate.NOT_TRANSACTIONAL})
WAIT_SECONDS: Final = 10.0
"""How long `wait_for` and `wait_until_caught_up` wait if they are not told otherwise."""
_PAUSE_SECONDS: Final = 0.02
_SHOWN: Final = 20
"""How many differences a message of `assert_exactly_once` names."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    fate: str
    """`committed`, `aborted`, `open` (its transaction has not ended), or `not transactional`."""
    producer_id: int
    """-1 for a producer that is not idempotent."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} @ {self.offset}"


Key = Callable[[Record], object]


@checked
class Contents:
    """What a cluster contains, by its `bootstrap_servers`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

    def __dir__(self) -> Iterable[str]:
        """What completion shows."""
        return [n for n in super().__dir__() if n.startswith("__") or not n.startswith("_")]

    @property
    def bootstrap_servers(self) -> str:
        """The value for a client's `bootstrap.servers`."""
        return self._servers

    def _connect(self) -> Client:
        from fencepost.client.blocking import connect

        return connect(self.bootstrap_servers, {"client.id": EXEMPT_CLIENT})

    # -- topics and records -----------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, *, config: Mapping[str, object] | None = None
    ) -> None:
        """Creates a topic; returns when it can be used. An error if it exists."""
        from fencepost.client.admin import NewTopic

        configs = {key: str(value) for key, value in (config or {}).items()}
        with self._connect() as client:
            client.create_topics([NewTopic(name, partitions, configs=configs)])

    def produce(
        self,
        topic: str,
        *records: Given,
        partition: int | None = None,
        transactional_id: str | None = None,
        commit: bool = True,
        headers: Mapping[str, Text | None] | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Writes records, each a value or a (key, value), and returns when they are acknowledged.

        With a transactional id they are one transaction, which is aborted if `commit` is False.
        Partitions are those that Kafka's Java client would choose. Headers and time are those of
        each record; the time is milliseconds since 1970, and by default that of the write.
        """
        from fencepost.client.record_writer import RecordWriter
        from fencepost.records.opened import Record as PlainRecord

        if transactional_id is None and not commit:
            raise ConfigError("Only a transaction can be aborted: add transactional_id=.")
        named = tuple((name, _bytes(value)) for name, value in (headers or {}).items())
        time_ms = NO_TIMESTAMP if timestamp_ms is None else checked_timestamp(timestamp_ms)
        made = [
            PlainRecord(timestamp_ms=time_ms, key=key, value=value, headers=named)
            for key, value in map(_key_and_value, records)
        ]
        with self._connect() as client:
            indexes = _partitions_of(client, topic, create=True)
            identity = client.init_producer_id(transactional_id)
            with client.writer(identity) as writer:
                wrote = RecordWriter(writer, topic, indexes, batch_bytes=1 << 16)
                for number, record in enumerate(made):
                    wrote.add(record, number, partition)
                wrote.flush()
            if transactional_id is not None and made:
                client.end_txn(identity, commit=commit)

    def records(self, topic: str) -> list[Record]:
        """All records of a topic with their fates, by partition and offset."""
        with self._connect() as client:
            return [
                record
                for index in _partitions_of(client, topic)
                for record in _records_of(client, TopicPartition(topic, index))
            ]

    def committed(self, topic: str) -> list[Record]:
        """What a read_committed consumer sees, by partition and offset.

        A consumer sees nothing behind the first record of an open transaction, so neither do you.
        """
        return _seen_by_consumers(self.records(topic))

    def wait_for(
        self, topic: str, count: int, timeout_seconds: float = WAIT_SECONDS
    ) -> list[Record]:
        """Waits until a topic has `count` committed records or more, and returns all it has.

        AssertionError after the timeout, with what there is. The topic may come later.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._connect() as client:
                exists = client.find_topic(topic) is not None
            records = self.records(topic) if exists else []
            found = _seen_by_consumers(records)
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                fates = Counter(record.fate for record in records)
                seen = ", ".join(f"{number} {fate}" for fate, number in fates.items())
                what = f"its records: {seen or 'none'}" if exists else "there is no such topic"
                line = (
                    f"{topic!r} has {len(found)} committed records that a consumer sees, not "
                    f"{count}, after {timeout_seconds:g} s; {what}."
                )
                raise AssertionError("\n".join((line, *self._listed_open())))
            time.sleep(_PAUSE_SECONDS)

    # -- transactions -----------------------------------------------------------------------------

    def transactions(self) -> list[TransactionView]:
        """All transactional ids with their states, by name."""
        with self._connect() as client:
            ids = sorted({each.transactional_id for each in client.list_transactions()})
            return [view for view in client.describe_transactions(ids).values() if view is not None]

    def open_transactions(self) -> list[TransactionView]:
        """Those that are neither committed nor aborted yet."""
        return [each for each in self.transactions() if each.state in _OPEN_STATES]

    def fence(self, transactional_id: str) -> None:
        """Takes a transactional id over, as a second instance of the service does when it starts.

        Its open transaction is aborted, and the next request of its producer is refused.
        """
        with self._connect() as client:
            known = {each.transactional_id for each in client.list_transactions()}
            if transactional_id not in known:
                what = f"No producer has used the transactional id {transactional_id!r}"
                raise FencepostError(nearest(what, transactional_id, known))
            client.init_producer_id(transactional_id)

    # -- groups -----------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """A consumer group, which must exist when it is first asked."""
        return Group(name, self._connect)

    def groups(self) -> list[str]:
        """The names of all groups: those with members or with committed offsets."""
        with self._connect() as client:
            return _group_names(client)

    # -- assertions -------------------------------------------------------------------------------

    def assert_exactly_once(
        self,
        input: str | Iterable[str],  # noqa: A002 - the word of the field
        output: str | Iterable[str],
        *,
        key: Key = lambda record: record.key,
        output_key: Key | None = None,
    ) -> None:
        """AssertionError unless each committed input record has exactly one committed output.

        `key` tells which belong together: by default it is the key of the record. The message names
        what is lost, written twice, and not in the input. Without any record on both sides there is
        nothing to compare, which is an error, too.
        """
        asked = self._by_key(input, key)
        found = self._by_key(output, output_key or key)
        if not (asked or found):
            nothing = f"Neither {_named(input)} nor {_named(output)} has a committed record."
            raise AssertionError("\n".join((nothing, *self._listed_open())))
        lost, twice, unexpected = [], [], []
        for name in sorted({*asked, *found}, key=repr):
            before, after = asked.get(name, []), found.get(name, [])
            places = ", ".join(map(str, after))
            if len(after) < len(before):
                more = f", of {len(before)} only {len(after)} ({places})" if after else ""
                lost.append(f"{name!r} ({', '.join(map(str, before))}){more}")
            elif not before:
                unexpected.append(f"{name!r} ({places})")
            elif len(after) > len(before):
                twice.append(f"{name!r} {len(after)} times for {len(before)} in ({places})")
        if not (lost or twice or unexpected):
            return
        lines = [
            (
                f"{_named(output)} does not have every committed record of {_named(input)} "
                f"exactly once: {len(lost)} lost, {len(twice)} more than once, "
                f"{len(unexpected)} unexpected."
            ),
            *_listed("lost", lost),
            *_listed("more than once", twice),
            *_listed("unexpected", unexpected),
        ]
        if lost:
            lines += self._listed_open()
        raise AssertionError("\n".join(lines))

    def _listed_open(self) -> Iterator[str]:
        for each in self.open_transactions():
            places = ", ".join(map(str, each.partitions)) or "no partition yet"
            yield f"  {each.transactional_id!r} has an open transaction ({places})"

    def _by_key(self, topics: str | Iterable[str], key: Key) -> dict[object, list[Record]]:
        found: defaultdict[object, list[Record]] = defaultdict(list)
        for topic in (topics,) if isinstance(topics, str) else topics:
            for record in self.committed(topic):
                found[key(record)].append(record)
        return dict(found)


@checked
class Group:
    """A consumer group, as it is whenever it is asked.

    FencepostError if there is no such group and never was: the name is misspelt, or nothing has
    joined it or committed in it yet.
    """

    def __init__(self, name: str, connect: Callable[[], Client]) -> None:
        self.name = name
        self._connect = connect
        self._has_existed = False

    def _require(self, client: Client) -> None:
        if not self._has_existed:
            names = _group_names(client)
            if self.name not in names:
                what = f"There is no group {self.name!r}, with members or with committed offsets"
                raise FencepostError(nearest(what, self.name, names))
            self._has_existed = True

    def __repr__(self) -> str:
        return f"<group {self.name!r}>"

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The committed offset of each partition that has one."""
        with self._connect() as client:
            self._require(client)
            found = client.offset_fetch(self.name)
        return {partition: found[partition].offset for partition in sorted(found)}

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each partition with a committed offset is behind.

        Counted to the last stable offset, which is as far as a read_committed consumer gets.
        Markers have offsets, too: a group that has read everything may be behind by one marker.
        """
        from fencepost.client.reading import LATEST

        offsets = self.offsets
        with self._connect() as client:
            ends = client.list_offsets(dict.fromkeys(offsets, LATEST), isolation="read_committed")
        return {each: max(0, ends[each].offset - offset) for each, offset in offsets.items()}

    @property
    def members(self) -> list[MemberView]:
        """The members, with what is assigned to them."""
        from fencepost.client.group_admin import describe_group

        with self._connect() as client:
            self._require(client)
            found = client.run(describe_group(client.core, self.name))
        return [] if found is None else list(found.members)

    def wait_until_caught_up(self, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Waits until the group has committed past every record that its consumers can see.

        Its topics are those with a committed offset and those that its members read. The group may
        come later. AssertionError after the timeout, with what is left.
        """
        deadline = time.monotonic() + timeout_seconds
        while left := self._left():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"Group {self.name!r} has not caught up after {timeout_seconds:g} s: {left}."
                )
            time.sleep(_PAUSE_SECONDS)

    def _left(self) -> str:
        """What it has not committed yet, in words; empty if it has caught up."""
        with self._connect() as client:
            names = _group_names(client)
        if self.name not in names:
            return f"there is no such group; there are {', '.join(map(repr, names)) or 'none'}"
        offsets = self.offsets
        topics = {each.topic for each in offsets}
        topics |= {each.topic for member in self.members for each in member.assigned}
        if not topics:
            return "it has no committed offset and reads no partition"
        unread: Counter[TopicPartition] = Counter()
        with self._connect() as client:
            for topic in sorted(topics):
                for index in _partitions_of(client, topic):
                    partition = TopicPartition(topic, index)
                    found = _seen_by_consumers(list(_records_of(client, partition)))
                    start = offsets.get(partition, 0)
                    unread[partition] = sum(record.offset >= start for record in found)
        return ", ".join(f"{count} records of {each}" for each, count in unread.items() if count)

    def expire(self, member: str) -> None:
        """Removes a member as if its session had ended: the others rebalance, and it must rejoin.

        It is named by its client id, its group.instance.id or its member id.
        """
        found = [each for each in self.members if member in (each.client_id, each.instance_id)] or [
            each for each in self.members if member == each.member_id
        ]
        if len(found) != 1:
            known = ", ".join(repr(each.client_id) for each in self.members) or "none"
            raise FencepostError(
                f"Group {self.name!r} has {len(found)} members {member!r}; the client ids of its "
                f"members: {known}."
            )
        with self._connect() as client:
            _remove(client, self.name, found[0])


def _seen_by_consumers(found: list[Record]) -> list[Record]:
    """Those that a read_committed consumer sees."""
    stable: dict[int, int] = {}
    for record in found:
        if record.fate == Fate.OPEN.value:
            stable.setdefault(record.partition, record.offset)
    visible = {fate.value for fate in _VISIBLE}
    return [
        record
        for record in found
        if record.fate in visible
        and record.offset < stable.get(record.partition, record.offset + 1)
    ]


def _group_names(client: Client) -> list[str]:
    from fencepost.client.group_admin import list_groups

    return sorted({each.group for each in client.run(list_groups(client.core))})


def checked_timestamp(timestamp_ms: object) -> int:
    """The time of a record; ConfigError if it is none."""
    if type(timestamp_ms) is not int or timestamp_ms < 0:
        raise ConfigError(
            f"timestamp_ms is milliseconds since 1970, a whole number, not {timestamp_ms!r}."
        )
    return timestamp_ms


def _remove(client: Client, group: str, member: MemberView) -> None:
    from fencepost.client.calls import error_code
    from fencepost.client.group_admin import CONSUMER, describe_group
    from fencepost.client.groups import call_coordinator
    from fencepost.wire.apis import ApiKey
    from fencepost.wire.forms.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from fencepost.wire.forms.leave_group import LeaveGroupRequest, MemberIdentity

    found = client.run(describe_group(client.core, group))
    api: ApiKey = ApiKey.LEAVE_GROUP
    request: Any = LeaveGroupRequest(
        group_id=group,
        members=[
            MemberIdentity(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                reason="a test has expired this member",
            )
        ],
    )
    if found is not None and found.kind == CONSUMER:
        api = ApiKey.CONSUMER_GROUP_HEARTBEAT
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member.member_id, member_epoch=-1
        )
    client.run(call_coordinator(client.core, group, api, request, error_code))


def _key_and_value(given: Any) -> tuple[bytes | None, bytes | None]:
    if isinstance(given, str | bytes):
        return None, _bytes(given)
    if isinstance(given, tuple) and len(given) == 2:
        return _bytes(given[0]), _bytes(given[1])
    raise ConfigError(
        f"{given!r} is not a record: use a value, or a tuple of a key and a value, of str or bytes."
    )


def _bytes(text: object) -> bytes | None:
    if text is None or isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode()
    raise ConfigError(f"Keys and values are str, bytes or None, not {text!r}.")


def _partitions_of(client: Client, topic: str, *, create: bool = False) -> list[int]:
    found = client.find_topic(topic)
    if found is None and create:
        from fencepost.client.admin import NewTopic

        client.create_topics([NewTopic(topic)])
        found = client.find_topic(topic)
    if found is None:
        names = client.metadata().topics
        raise FencepostError(nearest(f"There is no topic {topic!r}", topic, names))
    return sorted(each.index for each in found.partitions)


def _records_of(client: Client, partition: TopicPartition) -> Iterator[Record]:
    from fencepost.records.opened import open_batch

    for judged in fates_when_decided(_batches_of(client, partition)):
        batch = judged.batch
        if not batch.is_control:
            for record in open_batch(batch):
                yield _view(partition, record, judged.fate, batch.producer_id)


def _batches_of(client: Client, partition: TopicPartition) -> Iterator[SealedBatch]:
    """All batches up to the high watermark of now, markers and aborted ones too."""
    from fencepost.client.reading import EARLIEST, LATEST

    all_of_it = "read_uncommitted"
    position = client.list_offsets({partition: EARLIEST}, isolation=all_of_it)[partition].offset
    end = client.list_offsets({partition: LATEST}, isolation=all_of_it)[partition].offset
    while position < end:
        fetched = client.fetch({partition: position}, isolation=all_of_it)[partition]
        yield from fetched.batches
        if fetched.next_offset == position:
            return  # Retention or DeleteRecords has removed the rest meanwhile.
        position = fetched.next_offset


def _view(partition: TopicPartition, record: PlainRecord, fate: Fate, producer_id: int) -> Record:
    return Record(
        topic=partition.topic,
        partition=partition.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=tuple((name, value) for name, value in record.headers),
        fate=fate.value,
        producer_id=producer_id,
    )


def _named(topics: str | Iterable[str]) -> str:
    return repr(topics) if isinstance(topics, str) else " and ".join(map(repr, topics))


def _listed(what: str, items: list[str]) -> Iterator[str]:
    for item in items[:_SHOWN]:
        yield f"  {what}: {item}"
    if len(items) > _SHOWN:
        yield f"  {what}: and {len(items) - _SHOWN} more"
