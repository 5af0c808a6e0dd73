"""Produce (0): v3-13

Behaviour: checks the records of one batch per partition and appends it as it is; answers when the
           batches are durable by the chosen mode. acks -1 also requires min.insync.replicas live
           brokers, acks 1 does not; acks 0 gets no reply, and a refusal then closes the
           connection; other values are refused. If the partition moves to another broker before
           the batches are durable, they become durable first, and the client is answered as usual.
           The first write of a transaction to a partition is appended only after the coordinator
           has verified it (KIP-890), up to v11, or has added the partition to the transaction,
           from v12 on.
Versions:  v3 batches of magic 2 only; v7 zstd; v8 error messages and errors per record; v9
           flexible; v10 names the leader if another broker leads (KIP-951); v11
           TRANSACTION_ABORTABLE; v12 TV2; v13 topic ids. v0-2 are advertised and refused
           (KAFKA-18659).
Errors:    CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, MESSAGE_TOO_LARGE,
           NOT_LEADER_OR_FOLLOWER,
           INVALID_TOPIC_EXCEPTION, INVALID_REQUIRED_ACKS, TOPIC_AUTHORIZATION_FAILED,
           INVALID_TIMESTAMP, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH,
           INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
           KAFKA_STORAGE_ERROR, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, NOT_ENOUGH_REPLICAS
           (or the coordinator is not available), CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.failures import StorageError
from fencepost.base.ids import INTERNAL_TOPICS, topic_id_text
from fencepost.base.refusal import Refusal
from fencepost.base.seams import Buffer
from fencepost.broker import turns
from fencepost.broker.context import Context
from fencepost.broker.partitions import leadership
from fencepost.broker.peers import FirstWrite
from fencepost.broker.turns import Steps, Turn, run_in_turns
from fencepost.broker.waiting import NO_REPLY, NoReply, Parked
from fencepost.partition.opening import RECORDS_PER_STEP, SHORT_BYTES, Opening, must_open
from fencepost.partition.partition import Appended, Partition
from fencepost.partition.verification import Guard
from fencepost.records.batch import BatchError, SealedBatch, read_header
from fencepost.records.compression import Codec
from fencepost.records.produced import check_produced, read_produced
from fencepost.wire.forms.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from fencepost.wire.schema import constructor

log = logging.getLogger(__name__)

NONE: Final = ErrorCode.NONE
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
FIRST_VERSION_OF_TV2: Final = 12
FIRST_VERSION_WITH_ABORTABLE: Final = 11
FIRST_VERSION_WITH_LEADERS: Final = 10
FIRST_VERSION_WITH_ZSTD: Final = 7
ALL_REPLICAS: Final = -1
"""The value of acks that requires `min.insync.replicas`."""
WITHOUT_LOG_START: Final = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR}
)
"""Errors whose reply has no log start offset. Kafka sends it for all batches that its log
refuses."""
PARTITIONS_PER_STEP: Final = 100
"""Partitions of one topic that are admitted without a look at the time."""
LOGGED_REFUSALS: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE, ErrorCode.CORRUPT_MESSAGE}
)

_reply: Final = constructor(ProduceResponse)
_topic_reply: Final = constructor(TopicProduceResponse)
_partition_reply: Final = constructor(PartitionProduceResponse)


class Write:
    """The batch of one partition of a request."""

    __slots__ = ("batch", "guard", "opening", "partition", "reply")

    def __init__(self, partition: Partition, batch: SealedBatch, index: int) -> None:
        self.partition = partition
        self.batch = batch
        self.guard: Guard | None = None
        self.opening: Opening | None = None
        """The check of the records, unless it is switched off."""
        self.reply = _partition_reply(index=index, base_offset=-1)


def handle(request: ProduceRequest, context: Context) -> ProduceResponse | Parked | NoReply:
    """Serves one request; see above."""
    produce = Produce(request, context)
    if _is_wide(request):
        return produce.admit_in_turns()
    for topic in request.topic_data:
        produce.admission.add(topic, topic.partition_data)
    return produce.admitted()


class Produce:
    """One request on its way: admit, open, verify, append, answer.

    Every step returns the reply, or `parked` if it comes later; then a callback goes on with the
    next step. The callbacks are methods, because a compiled closure refers to itself, and only the
    garbage collector would free the request.
    """

    __slots__ = (
        "admission",
        "appended",
        "context",
        "first_writes",
        "is_tv2",
        "left",
        "parked",
        "request",
        "response",
        "undurable",
        "writes",
    )

    def __init__(self, request: ProduceRequest, context: Context) -> None:
        self.request = request
        self.context = context
        self.is_tv2 = context.api_version >= FIRST_VERSION_OF_TV2
        self.admission = Admission(request, context)
        self.response = self.admission.response
        """The reply, with the refusals so far in it."""
        self.writes: list[Write] = self.admission.writes
        """The batches that are not refused."""
        self.parked: Parked | None = None
        self.first_writes: list[Write] = []
        """Those that the coordinator has to verify."""
        self.appended = 0
        """How many of `writes` were appended or refused."""
        self.undurable: list[tuple[Write, int]] = []
        """Those that are appended and not durable, with their end offsets."""
        self.left = 0
        """How many of these are not durable yet."""

    def _park(self) -> Parked:
        if self.parked is None:
            self.parked = Parked(holds_followers=True)
        return self.parked

    def _go_on(self, reply: ProduceResponse | Parked | NoReply) -> None:
        """Answers a parked request, unless it is still to be answered."""
        assert self.parked is not None
        if reply is not self.parked:
            self.parked.answer(reply)

    # -- admit: rights, and checks that need no record ------------------------------------------

    def admit_in_turns(self) -> Parked:
        """Admits many batches over several turns, even if the client has left by then (acks=0)."""
        parked = self._park()
        run_in_turns(self.context.services.runtime, self.admission.steps(), self._admitted_later)
        return parked

    def _admitted_later(self) -> None:
        for write in self.writes:
            if write.partition.closed:
                self._refuse_gone(write)
        self.writes = [write for write in self.writes if not write.partition.closed]
        self._go_on(self.admitted())

    def admitted(self) -> ProduceResponse | Parked | NoReply:
        """Refuses what is wrong with the request as a whole."""
        error = self.admission.refusal()
        if error is not NONE:
            _refuse_all(self.response, error)
            self.writes = []
        return self.open()

    # -- open: check the records, in a thread or over several turns if there are many -------------

    def open(self) -> ProduceResponse | Parked | NoReply:
        """Checks the records of all batches."""
        to_open = [write.opening for write in self.writes if write.opening is not None]
        opener = self.context.services.batch_opener
        if to_open and not _open_at_once(to_open, opener.scratch):
            parked = self._park()
            opener.open(to_open, self._opened)
            return parked
        return self._verify()

    def _opened(self) -> None:
        for write in self.writes:
            if write.partition.closed:
                self._refuse_gone(write)
        self.writes = [write for write in self.writes if not write.partition.closed]
        self._go_on(self._verify())

    # -- verify: the coordinator is asked about the first writes of a transaction -----------------

    def _verify(self) -> ProduceResponse | Parked | NoReply:
        """Sends all first writes to the coordinator together."""
        name = self.request.transactional_id
        if name is None or not self.writes:
            return self._append()
        self._find_first_writes()
        # In TV2 the coordinator always adds the partition.
        config = self.context.services.config
        must_ask = self.is_tv2 or config.transaction_partition_verification_enable
        if not self.first_writes or not must_ask:
            return self._append()
        parked = self._park()
        batch = self.first_writes[0].batch  # All have the same producer (`_has_several_producers`).
        names = [write.partition.name for write in self.first_writes]
        first = FirstWrite(names, name, batch.producer_id, batch.producer_epoch, self.is_tv2)
        self.context.services.transactions.verify(first, self._verified)
        return parked

    def _find_first_writes(self) -> None:
        now_ms = self.context.services.runtime.clock.now_ms()
        writes, self.writes = self.writes, []
        for write in writes:
            if write.batch.is_transactional:
                guard = write.partition.begin_verification(
                    write.batch, now_ms, starts_at_zero=self.is_tv2
                )
                if isinstance(guard, Refusal):
                    _refuse(write, guard, self.context)
                    continue
                if guard is not None:
                    write.guard = guard
                    self.first_writes.append(write)
            self.writes.append(write)

    def _verified(self, errors: list[ErrorCode]) -> None:
        """Continues with the coordinator's reply."""
        refused = set()
        for write, error in zip(self.first_writes, errors, strict=True):
            if error is not NONE:
                refusal = _explain_verification(self.request, write, error, self.context)
                _refuse(write, refusal, self.context)
                refused.add(write)
        if refused:
            self.writes = [write for write in self.writes if write not in refused]
        self._go_on(self._append())

    # -- append -----------------------------------------------------------------------------------

    def _append(self) -> ProduceResponse | Parked | NoReply:
        """Appends the batches, for one short turn of the loop at a time.

        A request may have a batch for each of a thousand partitions, or a hundred megabytes. Others
        are served in between; the requests behind it wait until all of it is appended.
        """
        self._append_some()
        if self.appended == len(self.writes):
            return self._answer()
        parked = self._park()
        self.context.services.runtime.call_later(0, self._append_on)
        return parked

    def _append_on(self) -> None:
        self._go_on(self._append())

    def _append_some(self) -> None:
        """Appends until the end of a turn."""
        of_all = self.request.acks == ALL_REPLICAS
        now_ms = self.context.services.runtime.clock.now_ms()
        writes, first = self.writes, self.appended
        turn = Turn(is_short=True) if len(writes) > 1 else None
        for index in range(first, len(writes)):
            if turn is not None and index > first and turn.is_over():
                return
            self.appended = index + 1
            write = writes[index]
            if write.partition.closed:
                self._refuse_gone(write)
                continue
            under = of_all and write.partition.is_under_min_isr
            appended = _refuse_under_min_isr(write) if under else _append(write, now_ms)
            if not isinstance(appended, Appended):
                _refuse_records(write, appended, self.context)
                continue
            reply = write.reply
            reply.base_offset = appended.base_offset
            reply.log_append_time_ms = appended.append_time_ms
            reply.log_start_offset = write.partition.log_start_offset
            if appended.end_offset > write.partition.high_watermark:
                self.undurable.append((write, appended.end_offset))

    # -- answer -----------------------------------------------------------------------------------

    def _answer(self) -> ProduceResponse | Parked | NoReply:
        """Replies when all batches are durable; they are in the logs now."""
        context = self.context
        if self.request.acks == 0:
            for write, _ in self.undurable:
                context.services.partitions.appended(write.partition)
            return _say_nothing(self.response)
        if not self.undurable:
            return self.response
        if self.parked is None:
            self.parked = Parked()
        parked = self.parked
        parked.release()
        self.left = len(self.undurable)
        for write, end_offset in self.undurable:
            context.services.runtime.when_durable(
                write.partition, end_offset, partial(self._durable, write, end_offset)
            )
        return parked

    def _durable(self, write: Write, end_offset: int) -> None:
        partition = write.partition
        # A partition that moved was synced before it was closed.
        if partition.closed and partition.high_watermark < end_offset:
            self._refuse_gone(write)
        self.left -= 1
        if self.left == 0:
            assert self.parked is not None
            self.parked.answer(self.response)

    def _refuse_gone(self, write: Write) -> None:
        """Refuses a batch whose partition was deleted, recreated or moved while it waited."""
        partition = write.partition
        by_id = self.context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        what = "moved to another broker" if partition.is_moved else "was deleted"
        message = f"{partition.name} {what} before the batch was durable."
        refusal = Refusal(leadership.gone(partition, by_id=by_id), message)
        _refuse(write, refusal, self.context)
        write.reply.base_offset = -1
        write.reply.log_append_time_ms = -1
        write.reply.log_start_offset = -1
        if partition.is_moved:
            _name_leader(self.response, partition.name.topic, write.reply, self.context)


def _open_at_once(to_open: list[Opening], scratch: bytearray) -> bool:
    """Opens the batches of a request for at most one turn of the loop; True if all are open."""
    left_bytes = SHORT_BYTES
    records = 0
    for opening in to_open:
        records += opening.record_count
    turn = Turn() if records > RECORDS_PER_STEP else None
    for number, opening in enumerate(to_open):
        if number and turn is not None and turn.is_over():
            return False
        if not opening.unpack_short(left_bytes, scratch):
            return False
        while not opening.step():
            if turn is not None and turn.is_over():
                opening.detach()
                return False
        if not opening.pack_short(left_bytes):
            return False
        left_bytes -= opening.unpacked_bytes
    return True


# -- checks that need no partition
# -----------------------------------------------------------------------


def _is_wide(request: ProduceRequest) -> bool:
    """Whether there are too many topics and partitions for one turn of the loop."""
    left = turns.ELEMENTS_PER_TURN
    for topic in request.topic_data:
        left -= 1 + len(topic.partition_data)
        if left < 0:
            return True
    return False


class Admission:
    """The reply with the refusals in it, and the batches to write."""

    __slots__ = (
        "_context",
        "_has_transactional",
        "_may_write_transaction",
        "_refusal",
        "_request",
        "response",
        "writes",
    )

    def __init__(self, request: ProduceRequest, context: Context) -> None:
        self._request = request
        self._context = context
        self.response = _reply(responses=[])
        self.writes: list[Write] = []
        self._refusal = _refuse_whole(request)
        name = request.transactional_id
        self._may_write_transaction = name is not None and context.may(
            "WRITE", "TRANSACTIONAL_ID", name
        )
        self._has_transactional = False

    def steps(self) -> Steps:
        """Admits a few partitions in each step, on the state at that time."""
        for topic in self._request.topic_data:
            partitions = topic.partition_data
            for start in range(0, len(partitions) or 1, PARTITIONS_PER_STEP):
                part = partitions[start : start + PARTITIONS_PER_STEP]
                self.add(topic, part, goes_on=start > 0)
                yield len(part) or 1

    def add(
        self,
        topic: TopicProduceData,
        partitions: list[PartitionProduceData],
        *,
        goes_on: bool = False,
    ) -> None:
        """Admits partitions of a topic; `goes_on` if they are not the first in the reply."""
        context = self._context
        name = topic.name
        if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS:
            name = context.services.metadata.topic_name(topic.topic_id) or ""
        error = _refuse_unauthorized(name, context) or self._refusal or _refuse_internal(name)
        replies: list[PartitionProduceResponse] = []
        for data in partitions:
            if error is None:
                outcome = _admit_partition(name, data, context)
                if isinstance(outcome, Write):
                    self.writes.append(outcome)
                    replies.append(outcome.reply)
                    if outcome.batch.is_transactional:
                        self._has_transactional = True
                    continue
                if outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    _name_leader(self.response, name, outcome, context)
            else:
                outcome = _refused_reply(data.index, error)
            replies.append(outcome)
            # Including batches that are refused: Kafka checks this for all batches first.
            if not self._may_write_transaction and _claims_transaction(data.records):
                self._has_transactional = True
        if goes_on:
            self.response.responses[-1].partition_responses += replies
        elif replies:  # The reply leaves out a topic without partitions.
            self.response.responses.append(
                _topic_reply(name=name, topic_id=topic.topic_id, partition_responses=replies)
            )

    def refusal(self) -> ErrorCode:
        """The error of the whole request."""
        name = self._request.transactional_id
        if self._has_transactional and not self._may_write_transaction:
            if name is not None:
                # For the audit log.
                self._context.authorize("WRITE", "TRANSACTIONAL_ID", name)
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if name is not None and _has_several_producers(self.writes):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return NONE


def _refused_reply(
    index: int, refusal: Refusal, log_start_offset: int = -1
) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=refusal.error,
        base_offset=-1,
        log_start_offset=log_start_offset,
        error_message=refusal.message,
    )


def _log_start_for(refusal: Refusal, partition: Partition) -> int:
    """The log start offset in the reply to a refused batch; -1 if Kafka sends none."""
    return -1 if refusal.error in WITHOUT_LOG_START else partition.log_start_offset


def _refuse_whole(request: ProduceRequest) -> Refusal | None:
    if request.acks not in (-1, 0, 1):
        return Refusal(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it must be 0, 1 or -1 (all)."
        )
    return None


def _refuse_unauthorized(name: str, context: Context) -> Refusal | None:
    if name and not context.authorize("WRITE", "TOPIC", name):
        # Without the name: from v13 on the client may know the id alone.
        message = "Not authorized to write to the topic."
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
    return None


def _refuse_internal(name: str) -> Refusal | None:
    if name in INTERNAL_TOPICS:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Only the broker writes to {name}.")
    return None


def _admit_partition(
    name: str, data: PartitionProduceData, context: Context
) -> Write | PartitionProduceResponse:
    partition = context.services.partitions.get(name, data.index)
    if partition is None:
        return _refused_reply(data.index, _explain_absence(name, data.index, context))
    batch = read_produced(data.records)
    if isinstance(batch, Refusal):
        return _refused_reply(data.index, batch)
    if refusal := check_produced(batch, max_bytes=partition.log.config.max_message_bytes):
        return _refused_reply(data.index, refusal, _log_start_for(refusal, partition))
    if context.api_version < FIRST_VERSION_WITH_ZSTD and batch.codec == Codec.ZSTD:
        message = f"zstd needs version {FIRST_VERSION_WITH_ZSTD} or newer."
        return _refused_reply(data.index, Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message))
    write = Write(partition, batch, data.index)
    config = partition.log.config
    if context.services.config.record_validation_enable or must_open(batch, config):
        write.opening = Opening(batch, config)
    return write


def _explain_absence(name: str, index: int, context: Context) -> Refusal:
    error = leadership.why_not(context.services, name, index)
    if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Refusal(error, f"This broker does not serve partition {index} of {name}.")
    if context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS and not name:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    return Refusal(error, f"This broker has no partition {index} of {name or 'that id'}.")


def _name_leader(
    response: ProduceResponse, topic: str, reply: PartitionProduceResponse, context: Context
) -> None:
    """Adds the leader of a partition that another broker leads (KIP-951)."""
    if context.api_version >= FIRST_VERSION_WITH_LEADERS:
        metadata = context.services.metadata
        found = leadership.current_leader(metadata, topic, reply.index)
        reply.current_leader = LeaderIdAndEpoch(**found._asdict())
        address = leadership.address_of(metadata, found.leader_id, context.listener)
        _add_address(response, address)


def _add_address(response: ProduceResponse, address: leadership.LeaderAddress | None) -> None:
    if address is None or any(n.node_id == address.node_id for n in response.node_endpoints):
        return
    response.node_endpoints.append(NodeEndpoint(**address._asdict()))


def _claims_transaction(records: Buffer | None) -> bool:
    if not records:
        return False
    try:
        return read_header(records).is_transactional
    except BatchError:
        return False


def _has_several_producers(writes: list[Write]) -> bool:
    """Whether transactional batches of one request have several producers, which is not allowed."""
    if len(writes) < 2:
        return False
    identities = {
        (write.batch.producer_id, write.batch.producer_epoch)
        for write in writes
        if write.batch.is_transactional
    }
    return len(identities) > 1


def _refuse_all(response: ProduceResponse, error: ErrorCode) -> None:
    """Refuses the whole request, including partitions that have another error already."""
    for topic in response.responses:
        for reply in topic.partition_responses:
            reply.error_code = error
            reply.error_message = None
            reply.log_start_offset = -1
            reply.current_leader = None
    response.node_endpoints = []


# -- refusals
# ------------------------------------------------------------------------------------------------


def _explain_verification(
    request: ProduceRequest, write: Write, error: ErrorCode, context: Context
) -> Refusal:
    """Maps the coordinator's error to one that a producer of this version handles."""
    if error is ErrorCode.PRODUCER_FENCED:
        return _explain_fence(request, write, context)
    version = context.api_version
    producer = f"producer {write.batch.producer_id} at epoch {write.batch.producer_epoch}"
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        error = ErrorCode.INVALID_TXN_STATE
    elif error in (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ) or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_OF_TV2):
        # Old clients retry this error with the same batch; others are fatal (KAFKA-15459).
        error = ErrorCode.NOT_ENOUGH_REPLICAS
    return Refusal(error, f"The transaction of {producer} could not be verified: {error.name}.")


def _explain_fence(request: ProduceRequest, write: Write, context: Context) -> Refusal:
    """Replies with error 47, never 90 (KAFKA-10687), and with both epochs in the message."""
    batch = write.batch
    message = f"Epoch of producer {batch.producer_id} is {batch.producer_epoch}, which is not "
    known = context.services.transactions.describe(request.transactional_id or "")
    if known.error is NONE:
        message += f"the epoch {known.producer_epoch} of its coordinator."
    else:  # The coordinator has a newer epoch since its reply.
        message += "the epoch of its coordinator."
    return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, message)


def _say_nothing(response: ProduceResponse) -> NoReply:
    """With acks=0 there is no reply: an error closes the connection."""
    for topic in response.responses:
        for reply in topic.partition_responses:
            if reply.error_code != NONE:
                name = f"partition {reply.index} of {topic.name or topic_id_text(topic.topic_id)}"
                return NoReply(f"a produce with acks=0 to {name}: {error_name(reply.error_code)}")
    return NO_REPLY


def _refuse_under_min_isr(write: Write) -> Refusal:
    return Refusal(
        ErrorCode.NOT_ENOUGH_REPLICAS,
        f"{write.partition.name} has fewer live brokers than min.insync.replicas requires.",
    )


def _append(write: Write, now_ms: int) -> Appended | Refusal:
    try:
        return write.partition.append_from_client(write.batch, now_ms, write.guard, write.opening)
    except StorageError as problem:
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))


def _refuse(write: Write, refusal: Refusal, context: Context) -> None:
    write.reply.error_code = refusal.error
    write.reply.error_message = refusal.message or None
    if refusal.error in LOGGED_REFUSALS:
        log.warning(
            "produce to %s by %s refused: %s",
            write.partition.name,
            context.client_id or context.client_host,
            refusal.message,
        )


def _refuse_records(write: Write, refusal: Refusal, context: Context) -> None:
    """Refuses a batch that the partition does not accept."""
    _refuse(write, refusal, context)
    write.reply.log_start_offset = _log_start_for(refusal, write.partition)
    write.reply.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
        for index, why in refusal.record_errors
    ]
