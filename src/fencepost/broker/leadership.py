"""Whether a client and this node agree on who leads a partition, and since when."""

from __future__ import annotations

from fencepost.base.errors import ErrorCode
from fencepost.partition.partition import Partition


def check_leader_epoch(partition: Partition, epoch: int) -> ErrorCode | None:
    """The error for a client with an old or a future view; None when it has ours or did not say (-1)."""
    if epoch in (-1, partition.leader_epoch):
        return None
    if epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH
