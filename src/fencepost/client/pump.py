"""The procedure that drives a `Writer` of sealed batches.

`pump` sends what may be sent and handles answers until at most `until_bytes` are unacknowledged. A
caller passes its buffer size after every batch, and 0 to flush. `pump` also handles answers while
there is room in the buffer, so a queue opens as soon as its first batch is acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.ids import TopicPartition
from fencepost.client.calls import (
    CONCURRENT_TRANSACTIONS_BACKOFF_MS,
    Attempt,
    Core,
    backoff_ms,
    find_leaders,
)
from fencepost.client.failures import ClientError
from fencepost.client.reactions import Reaction
from fencepost.client.steps import Answer, Lost, Pause, Send, Steps, start, wait
from fencepost.client.transactions import ProducerIdentity, add_partitions
from fencepost.client.writer import ALL_REPLICAS, PartitionQueue, Shipment, Writer, unadded
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

_VERIFYING: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors of a first write whose verification collides with another one of the same producer id.
That takes milliseconds, so the first retries come quickly."""


def new_writer(core: Core, identity: ProducerIdentity, acks: int = ALL_REPLICAS) -> Writer:
    """Returns a writer with the limits of the client's options."""
    options = core.options
    return Writer(
        identity,
        window=options.max_in_flight,
        max_request_bytes=options.max_request_bytes,
        delivery_timeout_ms=options.delivery_timeout_ms,
        acks=acks,
    )


def pump(core: Core, writer: Writer, until_bytes: int) -> Steps[None]:
    """Sends and receives until at most `until_bytes` are unacknowledged. Errors end the writer."""
    writer.check()
    try:
        yield from _receive(core, writer, 0)
        searching = yield from _dispatch(core, writer)
        while writer.unacknowledged_bytes > until_bytes:
            yield from _receive(core, writer, _patience_ms(core, writer, searching))
            searching = yield from _dispatch(core, writer)
    except ClientError as problem:
        writer.failure = writer.failure or problem
        raise


def _patience_ms(core: Core, writer: Writer, searching: bool) -> int:
    """Returns how long to wait for answers before a retry or a timeout is due."""
    now_ms = core.clock.now_ms()
    writer.expire(now_ms)
    event_ms = writer.next_event_ms(now_ms)
    assert event_ms is not None, "unacknowledged bytes, and nothing to wait for"
    if searching:
        event_ms = min(event_ms, now_ms + backoff_ms(core, 0))
    return max(1, event_ms - now_ms)


def _receive(core: Core, writer: Writer, timeout_ms: int) -> Steps[None]:
    """Waits for answers, at most for the timeout, and handles those that have arrived."""
    if not writer.shipments:
        if timeout_ms:
            yield Pause(timeout_ms)
        return
    answers = yield from wait(tuple(writer.shipments), timeout_ms)
    for ticket in sorted(answers):
        shipment = writer.shipments.pop(ticket)
        _handle_answer(core, writer, shipment, answers[ticket])


# Sending.


def _dispatch(core: Core, writer: Writer) -> Steps[bool]:
    """Sends everything that may be sent. Returns True if a queue's leader is still unknown."""
    while queues := writer.busy_queues():
        yield from _add_to_transaction(core, writer, queues)
        searching = yield from _find_leaders(core, writer, queues)
        shipments = writer.due(core.clock.now_ms(), core.routes.leader)
        for shipment in shipments:
            ticket = yield from start(_produce(core, writer, shipment))
            writer.sent(ticket, shipment)
        if not shipments:
            return searching
    return False


def _add_to_transaction(core: Core, writer: Writer, queues: list[PartitionQueue]) -> Steps[None]:
    identity = writer.identity
    if identity.transactional_id is None or identity.is_tv2:
        return
    if missing := unadded(queues):
        yield from add_partitions(core, identity, missing)
        for partition in missing:
            writer.queue_of(partition).is_added = True


def _find_leaders(core: Core, writer: Writer, queues: list[PartitionQueue]) -> Steps[bool]:
    """Looks up missing leaders. One `Attempt` lasts until all of them are found."""
    if all(core.routes.leader(queue.partition) is not None for queue in queues):
        writer.search = None
        return False
    if writer.search is None:
        writer.search = Attempt(
            core, ApiKey.PRODUCE, str(writer.identity), writer.delivery_timeout_ms
        )
    found = yield from find_leaders(core, [queue.partition for queue in queues], writer.search)
    missing = len(queues) - sum(map(len, found.values()))
    return missing > 0


def _produce(core: Core, writer: Writer, shipment: Shipment) -> Send:
    topics: dict[str, list[PartitionProduceData]] = {}
    for queue, pending in shipment.batches:
        data = PartitionProduceData(index=queue.partition.partition, records=pending.batch.data)
        topics.setdefault(queue.partition.topic, []).append(data)
    timeout_ms = core.options.request_timeout_ms
    request = ProduceRequest(
        transactional_id=writer.identity.transactional_id,
        acks=writer.acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
        ],
    )
    at_most = writer.identity.at_most(ApiKey.PRODUCE)
    return Send(shipment.endpoint, ApiKey.PRODUCE, request, timeout_ms, at_most)


# Answers.


def _handle_answer(core: Core, writer: Writer, shipment: Shipment, answer: Answer) -> None:
    if isinstance(answer, Lost):
        core.routes.suspect(shipment.endpoint)
        tries = max(queue.tries for queue, _ in shipment.batches)
        reason = f"{shipment.endpoint}: {answer.reason}"
        writer.lost(shipment, reason, core.clock.now_ms() + backoff_ms(core, tries))
        return
    core.routes.trust(shipment.endpoint)
    answers = _by_partition(answer.form)
    for queue, pending in shipment.batches:
        response = answers.get(queue.partition)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if response is None else response.error_code
        message = None if response is None else response.error_message
        verdict = writer.judge(queue, pending, code, message)
        if verdict is Reaction.SUCCEED:
            assert response is not None
            writer.acknowledged(queue, pending, response.base_offset)
            continue
        if verdict is Reaction.REFRESH_METADATA:
            core.routes.forget_topics([queue.partition.topic])
        writer.retry(
            queue, pending, error_name(code), core.clock.now_ms() + _pause_ms(core, queue, code)
        )


def _by_partition(form: ProduceResponse) -> Mapping[TopicPartition, PartitionProduceResponse]:
    return {
        TopicPartition(topic.name, partition.index): partition
        for topic in form.responses
        for partition in topic.partition_responses
    }


def _pause_ms(core: Core, queue: PartitionQueue, code: int) -> int:
    if not queue.is_open and code in _VERIFYING:
        quick_ms = CONCURRENT_TRANSACTIONS_BACKOFF_MS << min(queue.tries, 10)
        return min(quick_ms, core.options.retry_backoff_max_ms)
    return backoff_ms(core, queue.tries)
