"""The requests of a transactional producer: InitProducerId, adding partitions, offsets, EndTxn.

Theory of operation. A producer is a transactional id, a producer id and an epoch. There are two
protocols. The cluster's finalised `transaction.version` chooses one; the broker recognises it by
the request versions alone:

    TV1  the producer adds partitions and groups before it writes (AddPartitionsToTxn,
         AddOffsetsToTxn), and keeps its epoch across transactions
    TV2  the first write adds its partition (Produce 12, TxnOffsetCommit 5), and every EndTxn (5)
         returns a new epoch, so a late request cannot reach the next transaction (KIP-890)

The identity includes the protocol, so Spark's driver and executors use the same one.

The effect of EndTxn. An answer of 0 is certain, and so is a refusal of the first attempt. It is
unknown after a lost answer, and after codes that Kafka also returns when the decision was written
but not replicated (15) or when the coordinator has moved since (16). After one of these even a
later refusal proves nothing: the decision may have been carried out, and the producer fenced since.
14 and 51 are the exceptions: the request had no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from fencepost.client.calls import (
    AnyBroker,
    Attempt,
    Core,
    Place,
    call_one,
    error_code,
    group_by_topic,
    locate,
)
from fencepost.client.conversation import versions_request
from fencepost.client.failures import ClientError, UnknownOutcome
from fencepost.client.groups import CommittedOffset, call_coordinator, partition_codes
from fencepost.client.reactions import Reaction
from fencepost.client.routes import CoordinatorKey, CoordinatorKind
from fencepost.client.steps import Lost, Send, Steps, exchange
from fencepost.client.versions import TRANSACTION_VERSION, TV1_MOST, finalized_features
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.add_offsets_to_txn import AddOffsetsToTxnRequest
from fencepost.wire.forms.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from fencepost.wire.forms.api_versions import ApiVersionsResponse
from fencepost.wire.forms.end_txn import EndTxnRequest, EndTxnResponse
from fencepost.wire.forms.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from fencepost.wire.forms.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

_NO_EFFECT: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS}
)
"""Retriable answers to EndTxn that prove that the request had no effect."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The identity of a producer. Without a transactional id it is only idempotent."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    transaction_version: int

    @property
    def is_tv2(self) -> bool:
        """Whether it uses TV2."""
        return self.transaction_version >= 2

    def at_most(self, api: ApiKey) -> int | None:
        """Returns the highest request version of this identity's protocol."""
        return None if self.is_tv2 else TV1_MOST.get(api)

    def __str__(self) -> str:
        name = self.transactional_id or "an idempotent producer"
        return f"{name} (producer {self.producer_id}, epoch {self.producer_epoch})"


def learn_transaction_version(core: Core) -> Steps[int]:
    """Returns the cluster's level of `transaction.version`; requests it once per client."""
    if core.transaction_version is None:
        request = versions_request()
        reply = yield from call_one(core, AnyBroker(), ApiKey.API_VERSIONS, request, error_code)
        core.transaction_version = _finalized_level(reply.form)
    return core.transaction_version


def init_producer_id(
    core: Core,
    transactional_id: str | None,
    timeout_ms: int = 60_000,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> Steps[ProducerIdentity]:
    """Gets a new epoch. This ends the id's open transaction and fences earlier producers.

    With a producer id and epoch, it fails if another producer has taken over since (KIP-360).
    """
    # Requested every time: a cluster may be upgraded from TV1 to TV2 while clients run
    # (KAFKA-18227).
    core.transaction_version = None
    version = yield from learn_transaction_version(core)
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    place: Place = AnyBroker() if transactional_id is None else coordinator_of(transactional_id)
    about = "an idempotent producer" if transactional_id is None else f"{transactional_id!r}"
    reply = yield from call_one(
        core, place, ApiKey.INIT_PRODUCER_ID, request, error_code, about=about
    )
    form: InitProducerIdResponse = reply.form
    return ProducerIdentity(transactional_id, form.producer_id, form.producer_epoch, version)


def add_partitions(
    core: Core, identity: ProducerIdentity, partitions: Collection[TopicPartition]
) -> Steps[None]:
    """TV1: adds partitions to the transaction before it writes to them."""
    assert identity.transactional_id is not None
    assert not identity.is_tv2
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=indexes)
            for topic, indexes in group_by_topic(partitions).items()
        ],
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    place = coordinator_of(identity.transactional_id)
    about = ", ".join(map(str, sorted(partitions)))
    yield from call_one(
        core, place, ApiKey.ADD_PARTITIONS_TO_TXN, request, _code_of_add, about=about
    )


def txn_offset_commit(
    core: Core,
    identity: ProducerIdentity,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> Steps[None]:
    """Adds a group's offsets to the transaction. They count only if it commits."""
    assert identity.transactional_id is not None
    assert offsets
    if not identity.is_tv2:
        yield from _add_offsets(core, identity, group)
    request = TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id,
        group_id=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        topics=_offset_topics(offsets),
    )
    api = ApiKey.TXN_OFFSET_COMMIT
    most = identity.at_most(api)
    yield from call_coordinator(core, group, api, request, partition_codes, most)


def _add_offsets(core: Core, identity: ProducerIdentity, group: str) -> Steps[None]:
    assert identity.transactional_id is not None
    request = AddOffsetsToTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group,
    )
    place = coordinator_of(identity.transactional_id)
    about = f"group {group!r}"
    yield from call_one(core, place, ApiKey.ADD_OFFSETS_TO_TXN, request, error_code, about=about)


def end_txn(core: Core, identity: ProducerIdentity, *, commit: bool) -> Steps[ProducerIdentity]:
    """Commits or aborts. Returns the identity for the next transaction.

    Raises `UnknownOutcome` if it may have taken effect or not; the module docstring says when.
    """
    assert identity.transactional_id is not None
    attempt = Attempt(core, ApiKey.END_TXN, str(identity))
    place = coordinator_of(identity.transactional_id)
    request = EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )
    doubt: str | None = None
    while True:
        try:
            endpoint = yield from locate(core, place, attempt)
            timeout_ms = attempt.request_timeout_ms()
            send = Send(
                endpoint, ApiKey.END_TXN, request, timeout_ms, identity.at_most(ApiKey.END_TXN)
            )
            answer = yield from exchange(send)
            if isinstance(answer, Lost):
                attempt.lost(endpoint, answer)
                doubt = attempt.last if answer.sent else doubt
            else:
                core.routes.trust(endpoint)
                verdict = attempt.judge(ApiKey.END_TXN, answer.form.error_code)
                if verdict is Reaction.SUCCEED:
                    return _next_identity(identity, answer.form)
                if answer.form.error_code not in _NO_EFFECT:
                    doubt = attempt.last
                if verdict is Reaction.REFRESH_COORDINATOR:
                    core.routes.forget_coordinator(place)
            yield from attempt.pause()
        except ClientError as problem:
            if doubt is None:
                raise
            raise _unknown(identity, commit, doubt, problem) from problem


def _next_identity(identity: ProducerIdentity, form: EndTxnResponse) -> ProducerIdentity:
    if form.producer_id == NO_PRODUCER_ID:
        return identity
    return replace(identity, producer_id=form.producer_id, producer_epoch=form.producer_epoch)


def _unknown(
    identity: ProducerIdentity, commit: bool, doubt: str, problem: Exception
) -> UnknownOutcome:
    word = "commit" if commit else "abort"
    return UnknownOutcome(
        f"it is not known whether the {word} of {identity} took effect: first {doubt}; then: "
        f"{problem}. Call init_producer_id, which completes or aborts the transaction, and read "
        "what it wrote"
    )


def coordinator_of(transactional_id: str) -> CoordinatorKey:
    """Returns the coordinator key of a transactional id."""
    return CoordinatorKey(CoordinatorKind.TRANSACTION, transactional_id)


def _offset_topics(
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> list[TxnOffsetCommitRequestTopic]:
    return [
        TxnOffsetCommitRequestTopic(
            name=topic,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offsets[TopicPartition(topic, index)].offset,
                    committed_leader_epoch=offsets[TopicPartition(topic, index)].leader_epoch,
                    committed_metadata=offsets[TopicPartition(topic, index)].metadata,
                )
                for index in indexes
            ],
        )
        for topic, indexes in group_by_topic(offsets).items()
    ]


def _code_of_add(form: AddPartitionsToTxnResponse) -> tuple[int, str | None]:
    """Returns the code that counts, before OPERATION_NOT_ATTEMPTED of other partitions."""
    codes = [
        result.partition_error_code
        for transaction in form.results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    ]
    real = [
        code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
    ]
    return (real or [max(codes, default=0)])[0], None


def _finalized_level(form: ApiVersionsResponse) -> int:
    features = finalized_features(form.finalized_features_epoch, form.finalized_features)
    return features.get(TRANSACTION_VERSION, 0)
