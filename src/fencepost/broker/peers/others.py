"""The other brokers of the cluster, as the services of this one see them.

A service reaches another broker through `Peers`: `cluster/peers.py` in a cluster, `NO_PEERS` in a
single broker. There are two requests: the verification of a first write, which a leader sends to
the coordinator, and a marker, which a coordinator sends to the leader. `requests.py` is the other
direction: it serves what other brokers send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from fencepost.base.errors import ErrorCode
    from fencepost.base.ids import TopicPartition
    from fencepost.broker.transactions.markers import EndMarker

Done = Callable[["list[ErrorCode] | None"], None]
"""Called once with one error per partition, or with None if the peer's process is dead or
unknown."""


Verified = Callable[["list[ErrorCode]"], None]
"""Called once with the coordinator's verdict on a first write, one error per partition."""


class FirstWrite:
    """The first write of a transaction to some partitions of one leader."""

    __slots__ = ("add", "names", "producer_epoch", "producer_id", "transactional_id")

    def __init__(
        self,
        names: Sequence[TopicPartition],
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        add: bool,
    ) -> None:
        self.names = names
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.add = add
        """Whether the coordinator adds the partitions (TV2), or checks that they were added."""


class Peers(Protocol):
    """Sends requests to other brokers.

    A request is sent once, and `done` is called once, at once if there is no such peer. None means
    that no copy of the request can be served any more: what the peer did before it died is in its
    logs.
    """

    @property
    def is_cluster(self) -> bool:
        """Whether there can be other brokers."""
        ...

    def verify(self, broker_id: int, write: FirstWrite, done: Done) -> None:
        """Asks the coordinator of a transaction whether a first write may go ahead."""
        ...

    def write_marker(
        self, broker_id: int, marker: EndMarker, names: Sequence[TopicPartition], done: Done
    ) -> None:
        """Sends a marker to the leader of these partitions."""
        ...


class NoPeers:
    """The peers of a single broker: there are none."""

    is_cluster: Final = False

    def verify(self, broker_id: int, write: FirstWrite, done: Done) -> None:
        """Answers that there is no such broker."""
        done(None)

    def write_marker(
        self, broker_id: int, marker: EndMarker, names: Sequence[TopicPartition], done: Done
    ) -> None:
        """Answers that there is no such broker."""
        done(None)


NO_PEERS: Final = NoPeers()
