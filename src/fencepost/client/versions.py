"""Chooses the version of a request: the highest that both the broker and this client support.

The forms of `wire` cover every version of Apache Kafka 4.4; `USED` lists what this client uses of
them. The upper ends stop before topic names became topic ids (Produce 13, OffsetCommit and
OffsetFetch 10, TxnOffsetCommit 6) and before the broker-to-broker versions of AddPartitionsToTxn:
users have names, and both brokers serve these versions. Fetch goes up to 13 for a caller that
passes topic ids, and to 12 otherwise (`reading.py`). The lower ends are those of Kafka 2.1, where
the form has the same shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fencepost.client.failures import UnsupportedByBroker
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.api_versions import FinalizedFeatureKey


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
    # 7 is the first version with require_stable (KIP-447).
    ApiKey.OFFSET_FETCH: Range(7, 9),
    ApiKey.ADD_PARTITIONS_TO_TXN: Range(0, 3),
    ApiKey.TXN_OFFSET_COMMIT: Range(0, 5),
    ApiKey.INIT_PRODUCER_ID: Range(0, 5),
    ApiKey.SASL_HANDSHAKE: Range(1, 1),
    # 5 would cost a second question at every broker before Kafka 4.4.
    ApiKey.API_VERSIONS: Range(0, 4),
}
"""The versions used; of other APIs, all that `wire` has."""

TV1_MOST: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}
"""The last versions of TV1. A broker recognises TV2 by the request version alone (KIP-890)."""

TRANSACTION_VERSION: Final = "transaction.version"


def finalized_features(epoch: int, features: Iterable[FinalizedFeatureKey]) -> dict[str, int]:
    """Returns feature levels by name.

    An epoch of -1 means that the broker does not know the finalised features.
    """
    return {} if epoch < 0 else {feature.name: feature.max_version_level for feature in features}


class Offer:
    """The API versions and features that one broker offers."""

    def __init__(self, ranges: Mapping[int, Range], features: Mapping[str, int]) -> None:
        self._ranges = ranges
        self._features = features

    def __repr__(self) -> str:
        return (
            f"<offer of {len(self._ranges)} APIs, {TRANSACTION_VERSION} {self.transaction_version}>"
        )

    @property
    def transaction_version(self) -> int:
        """The cluster's finalised level of transaction.version; 0 if the broker has none."""
        return self._features.get(TRANSACTION_VERSION, 0)

    def pick(self, api: ApiKey, at_most: int | None = None) -> int:
        """Returns the version to send; UnsupportedByBroker if none fits."""
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
                f"{theirs.most}, and this client needs one of {ours.least} to {ours.most}"
            )
        return most
