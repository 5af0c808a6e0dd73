"""What the state of its producer requires of a client's batch; checked after the topic's config.

In this order: the epoch, the verification of a transaction's first write, the sequence. A duplicate
is found before all of them: it is answered with the offsets of its first append.
"""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.partition.producers import Producers, ProducerState
from fencepost.partition.verification import Guard, Verification
from fencepost.records.batch import SealedBatch


def check_producer(
    producers: Producers,
    verification: Verification,
    batch: SealedBatch,
    state: ProducerState | None,
    guard: Guard | None,
) -> Refusal | None:
    """Checks a batch against the state of its producer, and the guard that its request holds."""
    held = verification.get(batch.producer_id)
    # Before the guard: a fenced producer must get INVALID_PRODUCER_EPOCH, not INVALID_TXN_STATE
    # (KAFKA-19690).
    if state is not None and (fenced := state.check_epoch(batch.producer_epoch)):
        return fenced
    in_doubt = batch.is_transactional or held is not None
    if in_doubt and not (
        state is not None and state.in_txn and state.epoch == batch.producer_epoch
    ):
        if batch.is_transactional and (guard is None or guard is not held):
            return Refusal(
                ErrorCode.INVALID_TXN_STATE,
                f"The transaction of producer {batch.producer_id} ended before its first write "
                "to this partition could be appended.",
            )
        # A batch outside the transaction may not overtake its first write either. A batch of
        # the open transaction is not compared: a guard then belongs to a later epoch.
        if held is not None and batch.base_sequence > held.lowest_sequence:
            return Refusal(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence {batch.base_sequence} of producer {batch.producer_id} came before "
                f"{held.lowest_sequence}, whose transaction is still being verified.",
            )
    return producers.check_sequence(batch, starts_at_zero=held is not None and held.starts_at_zero)
