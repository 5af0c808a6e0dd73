"""Producer ids without a transaction: one per process, with a new epoch for every writer.

A writer numbers its batches from 0, so it needs an identity that no other writer has used. A new
producer id for every task would do, but brokers remember each id for a day
(`producer.id.expiration.ms`) in every partition that it wrote to: a query with four tasks a second
would leave 350,000 of them. So a process keeps its id, and raises the epoch for the next writer
itself, as Kafka's own producer does after an error (KIP-360): a partition accepts a higher epoch,
starts again at sequence 0, and refuses the lower one from then on.

An identity serves one writer at a time. A writer that failed takes its identity with it: some of
its requests may still be on their way. A forked worker starts with no identity.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.base.ids import MAX_PRODUCER_EPOCH
from fencepost.spark.connection import cluster_of

if TYPE_CHECKING:
    from fencepost.client.options import ClientOptions
    from fencepost.client.transactions import ProducerIdentity

_idle: Final[dict[tuple[int, ClientOptions], list[ProducerIdentity]]] = {}
_lock: Final = threading.Lock()


@contextmanager
def lend_identity(options: ClientOptions) -> Iterator[ProducerIdentity]:
    """An identity for one writer; it can be used again if the block does not raise."""
    key = (os.getpid(), options)
    with _lock:
        kept = _idle.setdefault(key, [])
        found = kept.pop() if kept else None
    identity = cluster_of(options).init_producer_id(None) if found is None else found
    yield identity
    # The last epoch is left to the brokers, which never go beyond it either.
    if identity.producer_epoch < MAX_PRODUCER_EPOCH - 1:
        with _lock:
            kept.append(replace(identity, producer_epoch=identity.producer_epoch + 1))
