"""Which errors an API can answer with, for `faults.on(api).fail(error)`.

What a client does with an error that its API never returns says nothing about the client. An error
is foreign to an API if it is about transactions, groups or partitions, and the API is not, and our
broker does not return it either. All other errors are allowed: brokers of other versions return
more than ours.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError
from fencepost.wire.apis import API, ApiKey

_K: Final = ApiKey
_E: Final = ErrorCode

_TRANSACTION_APIS: Final = frozenset(
    {
        _K.PRODUCE,
        _K.FIND_COORDINATOR,
        _K.INIT_PRODUCER_ID,
        _K.ADD_PARTITIONS_TO_TXN,
        _K.ADD_OFFSETS_TO_TXN,
        _K.END_TXN,
        _K.WRITE_TXN_MARKERS,
        _K.TXN_OFFSET_COMMIT,
        _K.DESCRIBE_TRANSACTIONS,
        _K.LIST_TRANSACTIONS,
        _K.DESCRIBE_PRODUCERS,
    }
)
_GROUP_APIS: Final = frozenset(
    {
        _K.FIND_COORDINATOR,
        _K.OFFSET_COMMIT,
        _K.OFFSET_FETCH,
        _K.OFFSET_DELETE,
        _K.TXN_OFFSET_COMMIT,
        _K.ADD_OFFSETS_TO_TXN,
        _K.JOIN_GROUP,
        _K.SYNC_GROUP,
        _K.HEARTBEAT,
        _K.LEAVE_GROUP,
        _K.DESCRIBE_GROUPS,
        _K.LIST_GROUPS,
        _K.DELETE_GROUPS,
        _K.CONSUMER_GROUP_HEARTBEAT,
        _K.SHARE_GROUP_HEARTBEAT,
    }
)
_PARTITION_APIS: Final = frozenset(
    {
        _K.PRODUCE,
        _K.FETCH,
        _K.LIST_OFFSETS,
        _K.METADATA,
        _K.DELETE_RECORDS,
        _K.OFFSET_FOR_LEADER_EPOCH,
        _K.DESCRIBE_PRODUCERS,
        _K.WRITE_TXN_MARKERS,
        _K.ELECT_LEADERS,
    }
)

_DOMAINS: Final = (
    (
        _TRANSACTION_APIS,
        frozenset(
            {
                _E.OUT_OF_ORDER_SEQUENCE_NUMBER,
                _E.DUPLICATE_SEQUENCE_NUMBER,
                _E.INVALID_PRODUCER_EPOCH,
                _E.INVALID_TXN_STATE,
                _E.INVALID_PRODUCER_ID_MAPPING,
                _E.INVALID_TRANSACTION_TIMEOUT,
                _E.CONCURRENT_TRANSACTIONS,
                _E.TRANSACTION_COORDINATOR_FENCED,
                _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                _E.UNKNOWN_PRODUCER_ID,
                _E.PRODUCER_FENCED,
                _E.TRANSACTIONAL_ID_NOT_FOUND,
                _E.TRANSACTION_ABORTABLE,
            }
        ),
    ),
    (
        _GROUP_APIS,
        frozenset(
            {
                _E.ILLEGAL_GENERATION,
                _E.INCONSISTENT_GROUP_PROTOCOL,
                _E.UNKNOWN_MEMBER_ID,
                _E.INVALID_SESSION_TIMEOUT,
                _E.REBALANCE_IN_PROGRESS,
                _E.NON_EMPTY_GROUP,
                _E.MEMBER_ID_REQUIRED,
                _E.GROUP_MAX_SIZE_REACHED,
                _E.FENCED_INSTANCE_ID,
                _E.UNSTABLE_OFFSET_COMMIT,
                _E.FENCED_MEMBER_EPOCH,
                _E.UNRELEASED_INSTANCE_ID,
                _E.STALE_MEMBER_EPOCH,
            }
        ),
    ),
    (
        _TRANSACTION_APIS | _GROUP_APIS,
        frozenset(
            {
                _E.NOT_COORDINATOR,
                _E.COORDINATOR_NOT_AVAILABLE,
                _E.COORDINATOR_LOAD_IN_PROGRESS,
            }
        ),
    ),
    (
        _PARTITION_APIS,
        frozenset(
            {
                _E.OFFSET_OUT_OF_RANGE,
                _E.NOT_LEADER_OR_FOLLOWER,
                _E.FENCED_LEADER_EPOCH,
                _E.UNKNOWN_LEADER_EPOCH,
            }
        ),
    ),
)
"""APIs, and the errors that are about what they do."""


def refuse_foreign(api: ApiKey, error: ErrorCode) -> None:
    """ConfigError if the API never answers with this error."""
    owners = [apis for apis, errors in _DOMAINS if error in errors]
    if not owners or any(api in apis for apis in owners):
        return
    own = _errors_of(api)
    if error.name not in own:
        raise ConfigError(
            f"{API[api].name} never returns {error.name}. What it returns: {', '.join(own)}."
        )


def _errors_of(api: ApiKey) -> list[str]:
    """The errors in the header of its handler."""
    header = import_module(f"fencepost.broker.handlers.{api.name.lower()}").__doc__ or ""
    words = re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", header.partition("Errors:")[2])
    return [word for word in dict.fromkeys(words) if word in ErrorCode.__members__]
