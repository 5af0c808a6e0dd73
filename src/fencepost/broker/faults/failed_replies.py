"""The reply with an error, in the place where each API and version has it.

Most replies have one error for the whole. The others have one per topic, partition, group or other
item, and name the items of the request: `ITEMS` says from which arrays of the request which arrays
of the reply are filled, level by level. An item of the reply takes the fields that have the same
name in the request; a plain value (a group id, a partition) goes into the field named behind it.

Where a version has both, the error of the whole is used, as in Kafka. Exceptions are Fetch and
Metadata: there that place is for fetch sessions and for a client that has to bootstrap again, and
clients look for all other errors at partitions and topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.schema import struct_class, version_range


class Level(NamedTuple):
    """One array of a reply."""

    requested: str
    """The array of the request whose items it names."""
    answered: str
    named: str = ""
    """The field for an item that is a plain value."""


_TOPICS: Final = Level("topics", "topics")
_PARTITIONS: Final = Level("partitions", "partitions")
_RESOURCES: Final = (Level("resources", "responses"),)

ITEMS: Final[Mapping[ApiKey, tuple[Level, ...]]] = {
    ApiKey.PRODUCE: (
        Level("topic_data", "responses"),
        Level("partition_data", "partition_responses"),
    ),
    ApiKey.FETCH: (Level("topics", "responses"), _PARTITIONS),
    ApiKey.LIST_OFFSETS: (_TOPICS, _PARTITIONS),
    ApiKey.METADATA: (_TOPICS,),
    ApiKey.OFFSET_COMMIT: (_TOPICS, _PARTITIONS),
    ApiKey.OFFSET_FETCH: (
        Level("groups", "groups"),
        _TOPICS,
        Level("partition_indexes", "partitions", "partition_index"),
    ),
    ApiKey.FIND_COORDINATOR: (Level("coordinator_keys", "coordinators", "key"),),
    ApiKey.DESCRIBE_GROUPS: (Level("groups", "groups", "group_id"),),
    ApiKey.CREATE_TOPICS: (_TOPICS,),
    ApiKey.DELETE_TOPICS: (Level("topics", "responses"),),
    ApiKey.DELETE_RECORDS: (_TOPICS, _PARTITIONS),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_TOPICS, _PARTITIONS),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Level("transactions", "results_by_transaction"),
        Level("topics", "topic_results"),
        Level("partitions", "results_by_partition", "partition_index"),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        Level("markers", "markers"),
        _TOPICS,
        Level("partition_indexes", "partitions", "partition_index"),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (_TOPICS, _PARTITIONS),
    ApiKey.CREATE_ACLS: (Level("creations", "results"),),
    ApiKey.DELETE_ACLS: (Level("filters", "filter_results"),),
    ApiKey.DESCRIBE_CONFIGS: (Level("resources", "results"),),
    ApiKey.ALTER_CONFIGS: _RESOURCES,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _RESOURCES,
    ApiKey.CREATE_PARTITIONS: (Level("topics", "results"),),
    ApiKey.DELETE_GROUPS: (Level("groups_names", "results", "group_id"),),
    ApiKey.ELECT_LEADERS: (
        Level("topic_partitions", "replica_election_results"),
        Level("partitions", "partition_result", "partition_id"),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        _TOPICS,
        Level("partition_indexes", "partitions", "partition_index"),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        Level("transactional_ids", "transaction_states", "transactional_id"),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_TOPICS,),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (Level("group_ids", "groups", "group_id"),),
}

_OF_THE_WHOLE: Final[Mapping[ApiKey, frozenset[ErrorCode]]] = {
    ApiKey.FETCH: frozenset(
        {
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        }
    ),
    ApiKey.METADATA: frozenset({ErrorCode.REBOOTSTRAP_REQUIRED}),
}
"""The errors that belong to the whole reply although its items have a place, too."""

_ABSENT: Final = (
    "base_offset",
    "committed_offset",
    "high_watermark",
    "low_watermark",
    "node_id",
    "port",
)
"""Fields that are -1 in a failed item, and whose default is 0."""

_OTHER_NAMES: Final = {"partition_index": "partition"}
"""Fields of replies under their name in requests."""


def failed_reply(api: ApiKey, version: int, request: Any, error: ErrorCode) -> Any:
    """The reply, in its newest shape; `has_place` must be true."""
    reply = API[api].response()
    levels = ITEMS.get(api, ())
    if _is_of_the_whole(api, version, request, error):
        reply.error_code = error
    elif levels:
        _fill(reply, request, levels, error)
    else:  # DescribeLogDirs before version 3 reports by folder.
        _fill_one(reply, error)
    return reply


def add_brokers(request: Any, failed: Any, healthy: Any, error: ErrorCode) -> None:
    """Adds the brokers to a Metadata reply with an error, without which clients are lost.

    They are those of a healthy reply. So are the topics, if the request names none.
    """
    if request.topics is None and failed.error_code == ErrorCode.NONE:
        failed.topics = [
            type(topic)(name=topic.name, topic_id=topic.topic_id, error_code=error)
            for topic in healthy.topics
        ]
    failed.brokers = healthy.brokers
    failed.cluster_id = healthy.cluster_id
    failed.controller_id = healthy.controller_id


def has_place(api: ApiKey, version: int, request: Any, error: ErrorCode) -> bool:
    """Whether the reply to that request has a place for the error.

    There is none if a version has errors of items only, and the request names none.
    """
    if api not in ITEMS or _is_of_the_whole(api, version, request, error):
        return True
    return _names_items(api, request)


def _is_of_the_whole(api: ApiKey, version: int, request: Any, error: ErrorCode) -> bool:
    form = API[api].response
    newest = API[api].max_version
    found = [each for each in form.form_fields if each.name == "error_code"]
    # A field that left the message is filled by `shapes.py`, from the items.
    if not any({version, newest} <= set(version_range(each.versions)) for each in found):
        return False
    if api in _OF_THE_WHOLE and error not in _OF_THE_WHOLE[api]:
        return not _names_items(api, request)
    return True


def _names_items(api: ApiKey, request: Any) -> bool:
    if api is ApiKey.METADATA and request.topics is None:
        return True  # All of them.
    return bool(getattr(request, ITEMS[api][0].requested))


def _fill(answer: Any, asked: Any, levels: tuple[Level, ...], error: ErrorCode) -> None:
    """Names the items of the request in an array of the reply, each with the error."""
    level, *rest = levels
    declared = next(each for each in answer.form_fields if each.name == level.answered)
    made = struct_class(type(answer), declared.item_kind)
    items = [
        _failed_item(made, item, level, tuple(rest), error)
        for item in getattr(asked, level.requested) or ()
    ]
    setattr(answer, level.answered, items)


def _failed_item(
    made: type[Any], item: Any, level: Level, rest: tuple[Level, ...], error: ErrorCode
) -> Any:
    answer = made()
    for each in made.form_fields:
        name = each.name
        if name.endswith("error_code") and name != "topic_config_error_code":
            setattr(answer, name, error)
        elif name in _ABSENT:
            setattr(answer, name, -1)
        elif name == level.named:
            setattr(answer, name, item)
        elif not each.is_array:
            asked = name if hasattr(item, name) else _OTHER_NAMES.get(name, "")
            if hasattr(item, asked):
                setattr(answer, name, getattr(item, asked))
    if rest:
        _fill(answer, item, rest, error)
    return answer


def _fill_one(reply: Any, error: ErrorCode) -> None:
    """One item with the error, in the only array of the reply."""
    (declared,) = (each for each in reply.form_fields if each.is_array and each.is_struct)
    item = struct_class(type(reply), declared.item_kind)()
    item.error_code = error
    setattr(reply, declared.name, [item])
