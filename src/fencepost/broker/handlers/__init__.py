"""One module per API, named after Kafka's request; each has `handle(request, context)`.

The broker serves the APIs of `wire.apis`, in the versions there, but for a few. ApiVersions and
docs/reference/apis.md are generated from the table below. A handler module is imported with its
first request, which keeps the start short.
"""

from __future__ import annotations

from typing import Final

from fencepost.base import patterns
from fencepost.wire.apis import API, ApiKey

_NOT_SERVED: Final = frozenset(
    {
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
)
"""APIs of `wire.apis` that our client uses, or `fencepost tap` reads, at an Apache Kafka."""

HANDLERS: Final = {key: key.name.lower() for key in ApiKey if key not in _NOT_SERVED}
"""The handler modules of the APIs that this broker serves."""

CONTROLLER_APIS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
    }
)
"""Requests that only the controller serves. A broker of a cluster forwards them."""

_LAST_LIST_TRANSACTIONS_WITHOUT_PATTERNS: Final = 1


def max_served_version(key: ApiKey) -> int:
    """The highest version of an API that this broker serves."""
    if key is ApiKey.LIST_TRANSACTIONS and not patterns.is_available():
        return _LAST_LIST_TRANSACTIONS_WITHOUT_PATTERNS
    return API[key].max_version
