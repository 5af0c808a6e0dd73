"""TxnOffsetCommit (28): v0-6

Behaviour: keeps offsets of a group pending until the producer's transaction ends: a COMMIT marker
           commits them, an ABORT marker drops them. First the transaction coordinator verifies that
           the group's partition is in the transaction (KIP-890, up to v4), or adds it (from v5 on).
           Answers when durable. More than 1,000 partitions are committed in slices.
Versions:  v2 leader epochs; v3 flexible, member and generation, which fence a zombie's commit
           (KIP-447); v4 TRANSACTION_ABORTABLE, before that INVALID_TXN_STATE; v5 TV2; v6 topic
           ids, so that offsets never go to a new topic of the same name, and GROUP_ID_NOT_FOUND
           for a group that does not exist, before that ILLEGAL_GENERATION (KIP-1319).
Errors:    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED,
           TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
           INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, OFFSET_METADATA_TOO_LARGE, UNKNOWN_MEMBER_ID,
           FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
           INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE,
           CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE, NOT_COORDINATOR,
           COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS (before v2:
           COORDINATOR_NOT_AVAILABLE).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.broker.groups.offsets import Sorting
from fencepost.broker.groups.partition import Producer
from fencepost.broker.groups.slices import serve_in_slices
from fencepost.broker.handlers.offset_commit import offsets_of
from fencepost.broker.waiting import Parked
from fencepost.coordinator.group.events import Commit, CommitReply
from fencepost.wire.forms.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from fencepost.broker.context import Context
    from fencepost.broker.groups.slices import TopicIds

FIRST_VERSION_WITH_LOADING: Final = 2
FIRST_VERSION_WITH_ABORTABLE: Final = 4
FIRST_VERSION_OF_TV2: Final = 5
FIRST_VERSION_WITH_TOPIC_IDS: Final = 6


def handle(request: TxnOffsetCommitRequest, context: Context) -> object:
    """Serves one request; see above."""
    return serve_in_slices(request, context, _commit)


def _commit(
    request: TxnOffsetCommitRequest, context: Context, topic_ids: TopicIds | None
) -> TxnOffsetCommitResponse | Parked:
    sorting = Sorting(context, topic_ids)
    sorting.sort(
        request.topics,
        TxnOffsetCommitResponseTopic,
        TxnOffsetCommitResponsePartition,
        by_id=context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS,
        refused=_refuse(request, context),
    )
    response = TxnOffsetCommitResponse(topics=sorting.topics)
    if not sorting.admitted:
        return response
    # The next request of the producer may end this transaction.
    parked = Parked(holds_followers=True)

    def done(reply: CommitReply) -> None:
        sorting.add_errors(_lower(reply, context))
        parked.answer(response)

    def read_now() -> Commit:
        sorting.refuse_deleted()
        return _read(request, sorting, context)

    context.services.groups.commit_in_transaction(
        request.group_id,
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        add=context.api_version >= FIRST_VERSION_OF_TV2,
        verify=context.services.transactions.verify,
        read=read_now,
        done=done,
    )
    return parked


def _refuse(request: TxnOffsetCommitRequest, context: Context) -> ErrorCode:
    if not context.authorize("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not context.authorize("READ", "GROUP", request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _read(request: TxnOffsetCommitRequest, sorting: Sorting, context: Context) -> Commit:
    newer = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    return Commit(
        group_id=request.group_id,
        offsets=offsets_of(sorting),
        member_id=request.member_id,
        generation_id=request.generation_id,
        group_instance_id=request.group_instance_id,
        transactional=True,
        unknown_group_error=(
            ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION
        ),
    )


def _lower(reply: CommitReply, context: Context) -> CommitReply:
    """Maps errors that this version does not have to older ones."""
    version = context.api_version
    if (
        reply.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        and version < FIRST_VERSION_WITH_LOADING
    ):
        return replace(reply, error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if reply.error is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return replace(reply, error=ErrorCode.INVALID_TXN_STATE)
    return reply
