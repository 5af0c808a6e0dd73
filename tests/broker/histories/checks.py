"""The promises of the broker, checked against what its clients were told.

What has a name in `fencepost.testing.checks` is checked by it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.testing import checks
from fencepost.wire.apis import ApiKey
from tests.broker.histories.clients import PARTITIONS, SHOUTED_OFFSET, TransactionalProducer
from tests.broker.histories.model import Incarnation, Place, Transaction, require
from tests.broker.requests import batch_of, produce
from tests.transactions.requests import init_request, offset_fetch_request
from tests.transactions.wire import RETRIABLE, consume

if TYPE_CHECKING:
    from tests.broker.histories.world import World
    from tests.broker.node_stage import Stage

NONE = ErrorCode.NONE


class Log(NamedTuple):
    """What a read_committed and another reader get of a partition, by offset."""

    committed: dict[int, bytes]
    everything: dict[int, bytes]
    start: int


def check_all(world: World) -> None:
    """Raises ViolationError if a promise is broken."""
    logs: dict[tuple[Incarnation, int], Log] = {}
    for topic in world.model.topics.values():
        for index in range(PARTITIONS):
            logs[topic, index] = read(world.stage, topic, index)
    check_topics(world)
    check_nothing_is_open(world.stage)
    for (topic, index), log in logs.items():
        check_log(topic, index, log)
    for txn in world.model.transactions:
        check_transaction(txn, logs)
    check_plain_values(world, logs)
    check_offsets(world)
    check_producers_go_on(world)


def none_of(where: str, problems: list[str]) -> None:
    require(not problems, f"{where}: {problems}")


def check_topics(world: World) -> None:
    state = world.stage.node.metadata
    for name, topic in world.model.topics.items():
        require(state.topic_id(name) == topic.topic_id, f"{name} is not the topic that was made")


def read(stage: Stage, topic: Incarnation, index: int) -> Log:
    partition = stage.node.partitions.get(topic.name, index)
    require(partition is not None, f"{topic.name}-{index} is offline")
    assert partition is not None
    start = partition.log_start_offset
    committed = consume(stage, topic.name, index=index, offset=start).records
    everything = consume(stage, topic.name, index=index, offset=start, committed=False).records
    return Log(
        {each.offset: bytes(each.value or b"") for each in committed},
        {each.offset: bytes(each.value or b"") for each in everything},
        start,
    )


def check_nothing_is_open(stage: Stage) -> None:
    for coordinator in stage.node.transactions.coordinators():
        require(not coordinator.state.open, f"open at the coordinator: {coordinator.state.open}")
    for name, partition in stage.node.partitions.by_name.items():
        require(len(partition.open_txns) == 0, f"{name} has an open transaction")
        end = partition.log_end_offset
        bounds = (partition.last_stable_offset, partition.high_watermark)
        require(bounds == (end, end), f"{name} ends at {end}, and is stable to {bounds}")


def check_log(topic: Incarnation, index: int, log: Log) -> None:
    where = f"{topic.name}-{index}"
    none_of(where, checks.duplicate(log.everything.values()))
    require(log.start >= topic.deleted_below.get(index, 0), f"{where}: deleted records came back")
    none_of(where, checks.nonmonotonic_send(sent_to(topic, index)))
    if topic.is_compacted:
        return
    acknowledged = [
        (offset, value)
        for (at, offset), value in topic.acknowledged.items()
        if at == index and offset >= log.start
    ]
    none_of(where, checks.lost_write(acknowledged, log.everything.items()))
    for (at, offset), value in topic.seen.items():
        if at == index and offset >= log.start:
            found = log.committed.get(offset)
            require(found == value, f"{where}: a reader saw {value!r} at {offset}, now {found!r}")


def sent_to(topic: Incarnation, index: int) -> list[tuple[bytes, int]]:
    """Who wrote, and at which offset, in the order in which each client sent its values."""
    found: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for (at, offset), value in topic.acknowledged.items():
        who, _, number = value.rpartition(b".")
        if at == index:
            found[who].append((int(number), offset))
    return [(who, offset) for who, places in found.items() for _, offset in sorted(places)]


def check_transaction(txn: Transaction, logs: dict[tuple[Incarnation, int], Log]) -> None:
    """Committed records are there, aborted ones are not, and unknown ones all or none."""
    visible = {value for log in logs.values() for value in log.committed.values()}
    if txn.state in ("aborted", "open"):
        none_of(txn.name, checks.aborted_read(txn.values, visible))
        for topic, _ in logs:
            none_of(txn.name, checks.aborted_read(txn.values, topic.seen.values()))
        return
    readable = [
        value
        for topic, index, offset, value in txn.certain
        if (topic, index) in logs and not topic.is_compacted and offset >= logs[topic, index].start
    ]
    if txn.state == "committed":
        none_of(txn.name, checks.lost_write(readable, visible))
    else:
        none_of(txn.state, checks.torn_transaction({txn.name: readable}, visible))


def check_plain_values(world: World, logs: dict[tuple[Incarnation, int], Log]) -> None:
    """The newest value of each key of a compacted topic is there, or a newer one."""
    outcomes = {value: txn.state for txn in world.model.transactions for value in txn.values}
    for (topic, index), log in logs.items():
        if not topic.is_compacted:
            plain = [
                (offset, value)
                for (at, offset), value in topic.acknowledged.items()
                if at == index and offset >= log.start and value in world.model.plain
            ]
            lost = checks.lost_write(plain, log.committed.items())
            none_of(f"{topic.name}-{index}, read_committed", lost)
            continue
        newest: dict[bytes, int] = {}
        for (at, offset), value in topic.acknowledged.items():
            if at == index and outcomes.get(value, "committed") == "committed":
                key = world.model.keys[value]
                newest[key] = max(newest.get(key, -1), offset)
        found: dict[bytes, int] = {}
        for offset, value in log.committed.items():
            found[world.model.keys[value]] = offset
        for key, offset in newest.items():
            at_least = found.get(key, -1)
            require(
                at_least >= offset, f"{topic.name}-{index}: {key!r} is at {at_least}, not {offset}"
            )


def check_offsets(world: World) -> None:
    model = world.model
    found = offsets_of(world.stage, "plain")
    for place, (topic, offset) in model.committed_plainly.items():
        if model.topics.get(place[0]) is topic:
            highest = model.attempted_plainly[place]
            require(
                offset <= found.get(place, -1) <= highest,
                f"the offset of {place} is {found.get(place)}, committed {offset} to {highest}",
            )
    for actor in world.actors:
        if isinstance(actor.client, TransactionalProducer):
            check_offsets_of(world, actor.client)


def check_offsets_of(world: World, producer: TransactionalProducer) -> None:
    """The offsets of the last committed transaction, or of a later one of unknown outcome."""
    model = world.model
    found = offsets_of(world.stage, producer.group)
    mine = [txn for txn in model.transactions if txn.name == producer.name]
    possible: dict[Place, set[int]] = {}
    for txn in mine:
        for place, (topic, offset) in txn.offsets.items():
            if model.topics.get(place[0]) is not topic:
                continue
            if txn.state == "committed":
                possible[place] = {offset}
            elif txn.state in ("unsure", "ending"):
                possible.setdefault(place, {-1}).add(offset)
    for place, offsets in possible.items():
        got = found.get(place, -1)
        require(got in offsets, f"{producer.group}: {place} is at {got}, not in {offsets}")
    for place, got in found.items():
        aborted = {
            offset
            for txn in mine
            if txn.state == "aborted"
            for each, (_, offset) in txn.offsets.items()
            if each == place
        }
        require(got not in {SHOUTED_OFFSET, *aborted}, f"{place}: offset {got} was aborted")


def offsets_of(stage: Stage, group: str) -> dict[Place, int]:
    """All stable offsets of a group."""
    request = offset_fetch_request(group, None, stable=True)
    for _ in range(100):
        (told,) = stage.call(ApiKey.OFFSET_FETCH, 8, request).groups
        if told.error_code not in RETRIABLE:
            break
        stage.advance(100)
    require(told.error_code == NONE, f"{group}: {ErrorCode(told.error_code).name}")
    found = {}
    for topic in told.topics:
        for each in topic.partitions:
            require(each.error_code == NONE, f"{group}: an offset of {topic.name} is pending")
            found[topic.name, each.partition_index] = int(each.committed_offset)
    return found


def check_producers_go_on(world: World) -> None:
    """Idempotent producers write with their next sequence; a new producer id is unused."""
    stage = world.stage
    fresh = stage.call(ApiKey.INIT_PRODUCER_ID, 5, init_request(None))
    require(fresh.error_code == NONE, "no producer id is left")
    world.model.got_producer_id(fresh.producer_id)
    for topic in world.model.topics.values():
        for index in range(PARTITIONS):
            for actor in world.actors:
                client: Any = actor.client
                if hasattr(client, "next_sequence"):
                    write_next(world, client, topic, index)


def write_next(world: World, client: Any, topic: Incarnation, index: int) -> None:
    value = world.model.new_value(client.name)
    world.model.plain.add(value)
    key = b"k0" if topic.is_compacted else None
    if key is not None:
        world.model.keys[value] = key
    sequence = client.next_sequence(topic, index)
    batch = batch_of(
        value,
        key=key,
        producer_id=client.producer_id,
        epoch=0,
        sequence=sequence,
        timestamp_ms=world.now_ms(),
    )
    told = produce(world.stage, topic.name, batch, index=index)
    require(
        told.error_code == NONE,
        f"{client.name} cannot go on at sequence {sequence} of {topic.name}-{index}: "
        f"{ErrorCode(told.error_code).name}",
    )
    world.model.acknowledged(topic, index, told.base_offset, value)
    client.wrote(topic, index)
