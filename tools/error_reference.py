"""The table of docs/reference/errors.md: what each error means, its cause, and what to do.

The headers of the handlers say which APIs return an error, and Kafka's table whether it is
retriable. The texts are here. `make docs` fails for an error that a handler names and that has no
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode


class Words(NamedTuple):
    """One error, explained."""

    blame: str
    meaning: str
    remedy: str


_NO_ONE: Final = "no one: a temporary state"
_PROGRAM: Final = "the program"
_SETTINGS: Final = "settings"
_OTHER: Final = "another instance"
_CLIENT: Final = "the client library"
_DISK: Final = "the disk"
_PERMISSION: Final = "permissions"
_MEMBER: Final = "the group's coordination"
_RETRIED: Final = "Nothing: clients retry."

ERRORS: Final[Mapping[str, Words]] = MappingProxyType(
    {
        "UNKNOWN_SERVER_ERROR": Words(
            f"{_PROGRAM}, or the broker",
            "What a coordinator has to write does not fit into one batch (the broker logs how "
            "many bytes); otherwise a bug of the broker.",
            "Fewer partitions in one transaction or offset commit, smaller metadata of group "
            "members; otherwise report it with the broker's log.",
        ),
        "OFFSET_OUT_OF_RANGE": Words(
            "retention, or a wrong offset",
            "The offset is not in the log: deleted already, or not written yet.",
            "Decide with `auto.offset.reset` or `failOnDataLoss`; lengthen retention if the "
            "reader was too slow.",
        ),
        "CORRUPT_MESSAGE": Words(
            f"the network, or {_DISK}",
            "A batch failed its CRC check.",
            "On Produce clients retry. On Fetch bytes on the disk are damaged: run `fencepost "
            "check` on the stopped directory.",
        ),
        "UNKNOWN_TOPIC_OR_PARTITION": Words(
            _PROGRAM,
            "The topic or partition does not exist, or was just deleted.",
            "Create the topic, or correct its name. Clients retry for a while, in case it "
            "is being created.",
        ),
        "LEADER_NOT_AVAILABLE": Words(
            _NO_ONE, "The partition has no leader at the moment.", _RETRIED
        ),
        "NOT_LEADER_OR_FOLLOWER": Words(
            _NO_ONE,
            "The partition is led elsewhere, or is loading.",
            "Nothing: clients refresh metadata.",
        ),
        "MESSAGE_TOO_LARGE": Words(
            _SETTINGS,
            "The batch is above `max.message.bytes` of the topic.",
            "Smaller records or batches, or raise the topic's limit and the producer's "
            "`max.request.size`. In a transaction: abort.",
        ),
        "OFFSET_METADATA_TOO_LARGE": Words(
            _PROGRAM,
            "The text beside a committed offset is above `offset.metadata.max.bytes`.",
            "Store less there.",
        ),
        "COORDINATOR_LOAD_IN_PROGRESS": Words(
            _NO_ONE, "The coordinator is reading its log after a start.", _RETRIED
        ),
        "COORDINATOR_NOT_AVAILABLE": Words(
            _NO_ONE,
            "The coordinator's topic is being created, or its record could not be written.",
            "Nothing: clients retry. If it stays, look at the broker's log and the disk.",
        ),
        "NOT_COORDINATOR": Words(
            _NO_ONE,
            "Another broker coordinates this id or group now.",
            "Nothing: clients look the coordinator up again.",
        ),
        "INVALID_TOPIC_EXCEPTION": Words(
            _PROGRAM,
            "The name is not allowed, or the topic is internal and may not be used this way.",
            "Letters, digits, `.`, `_` and `-`, at most 249. Leave internal topics alone.",
        ),
        "NOT_ENOUGH_REPLICAS": Words(
            _NO_ONE,
            "On fencepost: the coordinator could not verify the first write of a transaction at "
            "this moment.",
            _RETRIED,
        ),
        "INVALID_REQUIRED_ACKS": Words(_SETTINGS, "`acks` is not 0, 1 or all.", "Use `acks=all`."),
        "ILLEGAL_GENERATION": Words(
            _MEMBER,
            "The member sent an old generation: the group has rebalanced.",
            "Abort the transaction, rejoin (the client does), and process from the committed "
            "offsets.",
        ),
        "INCONSISTENT_GROUP_PROTOCOL": Words(
            _SETTINGS,
            "Members of one group have no common assignor.",
            "Use the same `partition.assignment.strategy` everywhere.",
        ),
        "INVALID_GROUP_ID": Words(_PROGRAM, "The group id is empty.", "Set `group.id`."),
        "UNKNOWN_MEMBER_ID": Words(
            _MEMBER,
            "The member was removed: it missed its session timeout, or another instance "
            "replaced it.",
            "Shorter processing between polls, or a longer `max.poll.interval.ms`. In a "
            "transaction: abort.",
        ),
        "INVALID_SESSION_TIMEOUT": Words(
            _SETTINGS,
            "Outside of `group.min.session.timeout.ms` and `group.max.session.timeout.ms`.",
            "Set `session.timeout.ms` inside the range.",
        ),
        "REBALANCE_IN_PROGRESS": Words(
            _MEMBER, "The group is rebalancing.", "Nothing: the client rejoins."
        ),
        "TOPIC_AUTHORIZATION_FAILED": Words(
            _PERMISSION,
            "The user may not do this to the topic, or a transaction would write to an internal "
            "topic.",
            "Grant READ or WRITE on the topic; do not write to internal topics.",
        ),
        "GROUP_AUTHORIZATION_FAILED": Words(
            _PERMISSION, "The user may not use the group.", "Grant READ on the group."
        ),
        "CLUSTER_AUTHORIZATION_FAILED": Words(
            _PERMISSION, "The user may not do this to the cluster.", "Grant the operation it names."
        ),
        "INVALID_TIMESTAMP": Words(
            _PROGRAM,
            "A record's time is further from now than the topic allows.",
            "Correct the clock or the time, or widen `message.timestamp.before.max.ms` / "
            "`after.max.ms`.",
        ),
        "UNSUPPORTED_VERSION": Words(
            "an old or new client",
            "The broker does not serve this version, or this feature, of the request.",
            "See [APIs](apis.md) for what is served.",
        ),
        "TOPIC_ALREADY_EXISTS": Words(_PROGRAM, "The topic exists.", "Usually nothing."),
        "INVALID_PARTITIONS": Words(
            _PROGRAM,
            "Fewer than one, fewer than there are, or an internal topic's number would change.",
            "Ask for more than there are. The number of an internal topic is fixed.",
        ),
        "REQUEST_TIMED_OUT": Words(
            _NO_ONE,
            "The change is in the log, but not every broker has applied it within the timeout.",
            "Look whether it is there before you repeat it.",
        ),
        "INVALID_REPLICATION_FACTOR": Words(
            _PROGRAM,
            "More replicas than brokers, or a change of the factor that the request forbids.",
            "At most the number of brokers, or -1 for the default.",
        ),
        "INVALID_REPLICA_ASSIGNMENT": Words(
            _PROGRAM,
            "The assignment names no broker, one twice, or brokers that do not exist or are dead.",
            "Name live brokers, or leave the assignment out.",
        ),
        "INVALID_CONFIG": Words(
            _SETTINGS,
            "A setting is unknown or its value is not allowed; the message says which.",
            "Correct it.",
        ),
        "NOT_CONTROLLER": Words(
            _NO_ONE, "Another broker is the controller.", "Nothing: clients ask that one."
        ),
        "INVALID_REQUEST": Words(
            _PROGRAM,
            "The request contradicts itself; the message says where. For transactions: an empty "
            "transactional id.",
            "Correct it.",
        ),
        "REBOOTSTRAP_REQUIRED": Words(
            "an operator",
            "The client has reached another broker or cluster than it wants: its address belongs "
            "to someone else by now.",
            "Clients bootstrap again. If it stays, correct the addresses or the load balancer.",
        ),
        "POLICY_VIOLATION": Words(
            _SETTINGS,
            "The request is well-formed, but a rule of the broker forbids it; the message says "
            "which.",
            "Fewer partitions; for DeleteRecords a topic whose `cleanup.policy` has `delete`.",
        ),
        "OUT_OF_ORDER_SEQUENCE_NUMBER": Words(
            f"{_OTHER}, or lost records",
            "The batch does not follow the producer's last one: a batch in between is missing, "
            "or a second writer uses the same producer id and epoch.",
            "Abort the transaction and start it again. If it stays: one writer per producer, or "
            "the log lost acknowledged records (power loss in `os` mode).",
        ),
        "INVALID_PRODUCER_EPOCH": Words(
            _OTHER,
            "A partition has seen a higher epoch of this producer: fenced, or the transaction "
            "timed out. Old request versions get it from the coordinator too.",
            "Close the producer. See [Epochs and fencing](../concepts/fencing.md).",
        ),
        "INVALID_TXN_STATE": Words(
            f"{_PROGRAM}, or {_CLIENT}",
            "The transaction is not in a state that allows this: EndTxn without a transaction, "
            "another outcome than the one that was decided, a write without AddPartitionsToTxn.",
            "Close the producer, start a new one, and repeat the transaction.",
        ),
        "INVALID_PRODUCER_ID_MAPPING": Words(
            "a long pause",
            "The coordinator does not know this transactional id with this producer id: it "
            "expired (`transactional.id.expiration.ms`), or has a new producer id.",
            "Close the producer; `init_transactions` in a new one. Raise the expiration if "
            "producers pause for longer.",
        ),
        "INVALID_TRANSACTION_TIMEOUT": Words(
            _SETTINGS,
            "`transaction.timeout.ms` is below 1 or above the broker's "
            "`transaction.max.timeout.ms`.",
            "Lower the former or raise the latter.",
        ),
        "CONCURRENT_TRANSACTIONS": Words(
            _NO_ONE,
            "The last transaction of the id is still writing its markers, or is being aborted "
            "for a new owner.",
            "Nothing: clients back off and retry. If it stays for minutes: `fencepost txn "
            "describe`.",
        ),
        "TRANSACTION_COORDINATOR_FENCED": Words(
            "an operator",
            "A marker came from an older coordinator than one that the partition knows.",
            "Between brokers: nothing. From `kafka-transactions abort`: the "
            "coordinator epoch was wrong.",
        ),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Words(
            _PERMISSION,
            "The user may not use the transactional id; or a transactional batch came without one.",
            "Grant WRITE and DESCRIBE on the id.",
        ),
        "SECURITY_DISABLED": Words(
            "no one",
            "There is no authorizer, so there are no ACLs to list or change.",
            "Set `authorizer.class.name`, or leave it.",
        ),
        "OPERATION_NOT_ATTEMPTED": Words(
            "the other partitions of the request",
            "Another partition of the same AddPartitionsToTxn was refused, so this one was not "
            "added.",
            "Look at the error of the other partition.",
        ),
        "KAFKA_STORAGE_ERROR": Words(
            _DISK,
            "A write or read failed: full disk, I/O error. Nothing of the request was applied.",
            "Look at the broker's log, free space; clients retry, and the broker recovers by "
            "itself when the disk does.",
        ),
        "NON_EMPTY_GROUP": Words(
            _PROGRAM, "The group has live members.", "Stop its consumers first."
        ),
        "GROUP_ID_NOT_FOUND": Words(
            _PROGRAM, "No such group, or its offsets have expired.", "Check the name."
        ),
        "FETCH_SESSION_ID_NOT_FOUND": Words(
            _NO_ONE, "fencepost keeps no fetch sessions.", "Nothing: clients fetch without."
        ),
        "TOPIC_DELETION_DISABLED": Words(
            _SETTINGS, "`delete.topic.enable` is false.", "Set it to true."
        ),
        "FENCED_LEADER_EPOCH": Words(
            _NO_ONE,
            "The client's metadata is older than the broker's.",
            "Nothing: clients refresh metadata.",
        ),
        "UNKNOWN_LEADER_EPOCH": Words(
            _NO_ONE, "The client's metadata is newer than the broker's.", _RETRIED
        ),
        "UNSUPPORTED_COMPRESSION_TYPE": Words(
            _CLIENT,
            "The request version is too old for the codec, or there is no such codec.",
            "Another codec, or a newer client.",
        ),
        "MEMBER_ID_REQUIRED": Words(
            _NO_ONE, "A new member gets its id first, and joins with it.", "Nothing: clients do so."
        ),
        "GROUP_MAX_SIZE_REACHED": Words(
            _SETTINGS, "The group has `group.max.size` members.", "Raise it, or use more groups."
        ),
        "FENCED_INSTANCE_ID": Words(
            _OTHER,
            "Another consumer with the same `group.instance.id` has joined.",
            "One live consumer per instance id. Close this one.",
        ),
        "PREFERRED_LEADER_NOT_AVAILABLE": Words(
            _NO_ONE,
            "The preferred leader of the partition is dead.",
            "Elect again when it is back.",
        ),
        "ELIGIBLE_LEADERS_NOT_AVAILABLE": Words(
            _NO_ONE, "No replica of the partition is alive.", "Start one of its brokers."
        ),
        "ELECTION_NOT_NEEDED": Words(
            "no one", "The leader is the preferred one already.", "Nothing."
        ),
        "NO_REASSIGNMENT_IN_PROGRESS": Words(
            _PROGRAM,
            "There is no reassignment to cancel. On fencepost they are complete at once.",
            "Nothing; to undo one, assign the old replicas.",
        ),
        "GROUP_SUBSCRIBED_TO_TOPIC": Words(
            _PROGRAM,
            "The group still reads the topic whose offsets are to be deleted.",
            "Stop its consumers first.",
        ),
        "INVALID_RECORD": Words(
            _PROGRAM,
            "The topic does not accept such a record: no key on a compacted topic, a control "
            "batch, a batch whose records cannot be read.",
            "Set a key, or correct the topic's `cleanup.policy`. The message says which record "
            "cannot be read and why: the client is at fault.",
        ),
        "UNSTABLE_OFFSET_COMMIT": Words(
            _OTHER,
            "A transaction holds a pending offset of this partition.",
            "Nothing: consumers retry until the transaction ends. If it stays, find the "
            "transaction with `fencepost txn list`.",
        ),
        "PRODUCER_FENCED": Words(
            _OTHER,
            "A newer producer has initialised this transactional id, or the transaction timed "
            "out and was aborted.",
            "Close the producer and exit. If no other instance is alive: a longer "
            "`transaction.timeout.ms`, or shorter transactions.",
        ),
        "RESOURCE_NOT_FOUND": Words(
            _PROGRAM,
            "There is no such user, or the user has no such mechanism.",
            "`fencepost user list` shows them.",
        ),
        "DUPLICATE_RESOURCE": Words(
            _PROGRAM, "The request names a user, or one of its credentials, twice.", "Name it once."
        ),
        "UNACCEPTABLE_CREDENTIAL": Words(
            _PROGRAM,
            "A user without a name, fewer than 4096 or more than 16384 iterations, or a salted "
            "password of another length than the hash.",
            "`fencepost user add`, or kafka-configs.sh without `iterations`.",
        ),
        "UNSUPPORTED_SASL_MECHANISM": Words(
            _SETTINGS,
            "The listener does not have the mechanism that the client asks for.",
            "`sasl.mechanism` of the client: the reply, and the client's log, list those enabled. "
            "`sasl.enabled.mechanisms` of the broker.",
        ),
        "ILLEGAL_SASL_STATE": Words(
            _SETTINGS,
            "The client logs in at a listener without SASL, or has not begun with a handshake.",
            "`security.protocol` of the client and `listener.security.protocol.map` must agree.",
        ),
        "SASL_AUTHENTICATION_FAILED": Words(
            _SETTINGS,
            "No such user, or another password: the broker does not tell which. Or a session was "
            "renewed with another user or mechanism.",
            "User and password of the client; the broker's log has the reason.",
        ),
        "UNKNOWN_TOPIC_ID": Words(
            "an operator",
            "The topic was deleted, or deleted and created again: the id that the client has is "
            "old.",
            "Clients refresh metadata. Offsets of the old topic mean nothing in the new one.",
        ),
        "TRANSACTIONAL_ID_NOT_FOUND": Words(
            _PROGRAM,
            "No producer has used this id, or it has expired.",
            "Check the name with `fencepost txn list`.",
        ),
        "MISMATCHED_ENDPOINT_TYPE": Words(
            _PROGRAM,
            "The client asked a broker for controllers.",
            "`--bootstrap-server`, not `--bootstrap-controller`.",
        ),
        "UNSUPPORTED_ENDPOINT_TYPE": Words(
            _CLIENT, "An endpoint type that does not exist.", "Another version of the client."
        ),
        "TRANSACTION_ABORTABLE": Words(
            f"{_PROGRAM}, or {_CLIENT}",
            "The transaction cannot commit: a write came to a partition that had not joined it.",
            "Abort, and run the transaction again.",
        ),
        "INVALID_REGULAR_EXPRESSION": Words(
            _PROGRAM,
            "The pattern for transactional ids cannot be read, or is too long.",
            "RE2's syntax.",
        ),
    }
)


def error_table(apis_by_error: Mapping[str, list[str]]) -> Iterator[str]:
    """The rows, by code."""
    without = sorted(set(apis_by_error) - set(ERRORS))
    assert not without, f"say in tools/error_reference.py what to do about {without}"
    yield "| error | whose fault | what it means | what to do | returned by |"
    yield "|---|---|---|---|---|"
    for name, words in sorted(ERRORS.items(), key=lambda item: ErrorCode[item[0]]):
        code = ErrorCode[name]
        apis = apis_by_error.get(name, [])
        shown = ", ".join(apis) if len(apis) <= 4 else f"{len(apis)} APIs"
        error = f"**{int(code)}** {name}" + ("<br>*retriable*" if code.retriable else "")
        yield f"| {error} | {words.blame} | {words.meaning} | {words.remedy} | {shown} |"


def names_in(text: str) -> list[str]:
    """The errors that a header names."""
    return [
        name
        for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text)
        if name in ErrorCode.__members__
    ]
