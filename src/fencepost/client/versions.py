"""Which version of a request we send: the highest that the broker offers, we know, and the shape allows.

The forms of `wire` know every version of Apache Kafka 4.3; `USED` says which of them this client
fills in. The upper ends stop where topic names became topic ids (Produce 13, OffsetCommit and
OffsetFetch 10, and the broker-to-broker versions of AddPartitionsToTxn): names are what users have,
and both brokers serve these versions. Fetch goes one further, to 13, for a caller that names the id
of each topic; other fetches stop at 12 (`reading.py`). The lower ends are what Kafka 2.1 spoke,
where the form needs no other shape for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from fencepost.client.failures import UnsupportedByBroker
from fencepost.wire.apis import API, ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Range(NamedTuple):
    """Versions from least to most, both included."""

    least: int
    most: int


USED: Final[Mapping[ApiKey, Range]] = {
    ApiKey.PRODUCE: Range(3, 12),
    ApiKey.FETCH: Range(4, 13),
    ApiKey.LIST_OFFSETS: Range(2, 10),
    ApiKey.METADATA: Range(4, 12),
    ApiKey.OFFSET_COMMIT: Range(2, 9),
    # 7 is the first that can be told to wait for undecided offsets (KIP-447).
    ApiKey.OFFSET_FETCH: Range(7, 9),
    ApiKey.ADD_PARTITIONS_TO_TXN: Range(0, 3),
    ApiKey.TXN_OFFSET_COMMIT: Range(0, 5),
    ApiKey.INIT_PRODUCER_ID: Range(0, 5),
    ApiKey.SASL_HANDSHAKE: Range(1, 1),
}
"""What differs from everything that `wire` knows."""

TV1_MOST: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}
"""A broker takes a request for TV2 by its version alone (KIP-890): these are the last ones of
TV1."""

TRANSACTION_VERSION: Final = "transaction.version"


class Feature(Protocol):
    """What ApiVersions says of one feature of the cluster."""

    @property
    def name(self) -> str: ...

    @property
    def max_version_level(self) -> int: ...


def finalized_features(epoch: int, features: Iterable[Feature]) -> dict[str, int]:
    """Levels by name.

    An epoch of -1 means that the broker does not know what the cluster has finalised.
    """
    return {} if epoch < 0 else {feature.name: feature.max_version_level for feature in features}


class Offer:
    """What one broker said in ApiVersions."""

    def __init__(self, ranges: Mapping[int, Range], features: Mapping[str, int]) -> None:
        self._ranges = ranges
        self._features = features

    def __repr__(self) -> str:
        return (
            f"<offer of {len(self._ranges)} APIs, {TRANSACTION_VERSION} {self.transaction_version}>"
        )

    @property
    def transaction_version(self) -> int:
        """The level that the cluster has finalised; a broker that has never heard of it is at 0."""
        return self._features.get(TRANSACTION_VERSION, 0)

    def pick(self, api: ApiKey, at_most: int | None = None) -> int:
        """The version to send, or UnsupportedByBroker."""
        ours = USED.get(api, Range(API[api].min_version, API[api].max_version))
        theirs = self._ranges.get(api)
        if theirs is None:
            raise UnsupportedByBroker(
                f"the broker does not offer {API[api].name}: it is too old, or this listener "
                "does not serve it"
            )
        most = min(ours.most, theirs.most, API[api].max_version)
        if at_most is not None:
            most = min(most, at_most)
        if most < max(ours.least, theirs.least):
            raise UnsupportedByBroker(
                f"the broker offers {API[api].name} in versions {theirs.least} to "
                f"{theirs.most}, and this client "
                f"needs one of {ours.least} to {ours.most}"
            )
        return most
