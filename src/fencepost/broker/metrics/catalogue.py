"""Every metric that a broker serves: its name, type, labels and meaning.

The collector may only write what is listed here. docs/reference/metrics.md has one row per entry,
and a test compares the two, so a metric cannot be added, renamed or removed in one place only.
`kafka` is the name under which people know it from Kafka's JMX, or empty.

No label has a transactional id, a client id, a group or a user: their number is not bounded.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Type(Enum):
    """The types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric; the sample of a counter has `_total` after its name."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    kafka: str = ""


def _counter(name: str, text: str, *labels: str, kafka: str = "") -> Metric:
    return Metric(f"fencepost_{name}", Type.COUNTER, text, labels, kafka)


def _gauge(name: str, text: str, *labels: str, kafka: str = "") -> Metric:
    return Metric(f"fencepost_{name}", Type.GAUGE, text, labels, kafka)


def _histogram(name: str, text: str, *labels: str, kafka: str = "") -> Metric:
    return Metric(f"fencepost_{name}", Type.HISTOGRAM, text, labels, kafka)


BROKER: Final = _gauge("broker", "1; the label says which broker this is.", "broker_id")
READY: Final = _gauge("ready", "1 if the broker serves clients and its coordinators are loaded.")

# -- transactions: of the ids that this broker coordinates
TRANSACTIONS: Final = _gauge(
    "transactions", "Transactional ids that this broker coordinates, by state.", "state"
)
STARTED: Final = _counter("transactions_started", "Transactions that got their first partition.")
COMMITTED: Final = _counter("transactions_committed", "Transactions with a CompleteCommit record.")
COMMITTED_BY_ADMINISTRATOR: Final = _counter(
    "transactions_committed_by_administrator",
    "Of the committed ones, those that `fencepost txn commit` has committed.",
)
ABORTED: Final = _counter(
    "transactions_aborted", "Transactions with a CompleteAbort record, by reason.", "reason"
)
COMMIT_SECONDS: Final = _histogram(
    "transaction_commit_seconds", "From the decision to commit to the CompleteCommit record."
)
LIFETIME_SECONDS: Final = _histogram(
    "transaction_lifetime_seconds", "From the first partition to the Complete record."
)
OPEN: Final = _gauge("transactions_open", "Transactions that are Ongoing or Prepared.")
OLDEST_OPEN: Final = _gauge(
    "transactions_oldest_open_seconds", "Age of the oldest open transaction; 0 if there is none."
)
LATE: Final = _gauge(
    "transactions_late",
    "Open transactions that are older than transaction.max.timeout.ms and 5 minutes.",
)
FENCED: Final = _counter(
    "producers_fenced",
    "Producers whose epoch was raised by somebody else, by reason. A restarted application counts.",
    "reason",
)
MARKERS_BY_REQUEST: Final = _counter(
    "transaction_markers_by_request",
    "Markers that an administrator wrote with WriteTxnMarkers; the coordinator does not know.",
)
VERIFICATION_SECONDS: Final = _histogram(
    "transaction_verification_seconds",
    "First writes that the coordinator was asked about, until its answer.",
    kafka="AddPartitionsToTxnManager VerificationTimeMs",
)
UNVERIFIED: Final = _counter(
    "transaction_verification_failures",
    "First writes that the coordinator refused.",
    kafka="AddPartitionsToTxnManager VerificationFailureRate",
)
MARKERS_WAITING: Final = _gauge(
    "transaction_endings_waiting",
    "Transactions that are Prepared and still wait for a marker.",
    kafka="TransactionMarkerChannelManager UnknownDestinationQueueSize, LogAppendRetryQueueSize",
)

# -- partitions: those that this broker leads
PARTITIONS: Final = _gauge(
    "partitions", "Partitions that this broker leads.", kafka="ReplicaManager LeaderCount"
)
PARTITIONS_OFFLINE: Final = _gauge(
    "partitions_offline",
    "Partitions of this broker that could not be opened.",
    kafka="ReplicaManager OfflineReplicaCount",
)
PARTITIONS_LATE: Final = _gauge(
    "partitions_with_late_transactions",
    "Partitions with a transaction whose last write is older than transaction.max.timeout.ms and "
    "5 minutes (KIP-664).",
    kafka="ReplicaManager PartitionsWithLateTransactionsCount",
)
PINNED: Final = _gauge(
    "partitions_pinned", "Partitions whose last stable offset lags behind the high watermark."
)
LSO_LAG_MAX: Final = _gauge(
    "last_stable_offset_lag_max", "The largest lag of a last stable offset, in offsets."
)
LSO_AGE_MAX: Final = _gauge(
    "last_stable_offset_lag_age_seconds_max",
    "The longest time that a last stable offset has lagged.",
)
LSO_LAG: Final = _gauge(
    "last_stable_offset_lag",
    "The lag of one pinned partition, in offsets; the worst partitions only.",
    "topic",
    "partition",
    kafka="Partition LastStableOffsetLag",
)
LSO_AGE: Final = _gauge(
    "last_stable_offset_lag_age_seconds",
    "How long the last stable offset of one pinned partition has lagged.",
    "topic",
    "partition",
)
LOG_BYTES: Final = _gauge("log_size_bytes", "Size of all segments.", kafka="Log Size")
PRODUCER_IDS: Final = _gauge(
    "producer_ids",
    "Producer ids that partitions remember; one that writes to two partitions counts twice.",
    kafka="ReplicaManager ProducerIdCount",
)

# -- requests and connections
REQUEST_SECONDS: Final = _histogram(
    "request_seconds",
    "From the dispatch of a request to its reply, long polls included, by API.",
    "api",
    kafka="RequestMetrics RequestsPerSec, TotalTimeMs",
)
REQUEST_ERRORS: Final = _counter(
    "request_errors",
    "Error codes in replies, by API and error; a reply may have several.",
    "api",
    "error",
    kafka="RequestMetrics ErrorsPerSec",
)
RECEIVED_BYTES: Final = _counter(
    "request_received_bytes",
    "Bytes of requests, by API.",
    "api",
    kafka="BrokerTopicMetrics BytesInPerSec, RequestMetrics RequestBytes",
)
SENT_BYTES: Final = _counter(
    "reply_sent_bytes",
    "Bytes of replies, by API.",
    "api",
    kafka="BrokerTopicMetrics BytesOutPerSec",
)
CONNECTIONS: Final = _gauge(
    "connections", "Open connections of clients.", kafka="socket-server-metrics connection-count"
)
ACCEPTED: Final = _counter(
    "connections_accepted",
    "Connections that were accepted.",
    kafka="socket-server-metrics connection-creation-rate",
)
UNREAD_BYTES: Final = _gauge(
    "unread_reply_bytes",
    "Memory of replies that clients have not read (queued.max.response.bytes).",
)
LARGE_REQUEST_BYTES: Final = _gauge(
    "large_request_bytes",
    "Memory of large requests (queued.max.request.bytes).",
    kafka="SocketServer MemoryPoolUsed",
)

# -- groups: those that this broker coordinates
GROUPS: Final = _gauge(
    "groups",
    "Consumer groups that this broker coordinates, by state.",
    "state",
    kafka="GroupMetadataManager NumGroups, NumGroupsStable, ...",
)

# -- the process
STALL: Final = _gauge(
    "loop_stall_seconds_max",
    "The longest time since the last scrape in which the event loop served nothing else.",
    kafka="KafkaRequestHandlerPool RequestHandlerAvgIdlePercent",
)
RECOVERY_SECONDS: Final = _gauge(
    "recovery_seconds", "How long the start of this process took to recover all logs."
)
RECOVERY_CUT: Final = _gauge(
    "recovery_cut_bytes", "Bytes that recovery cut off since the start of this process."
)
LOAD_SECONDS: Final = _gauge(
    "coordinator_load_seconds_max",
    "The longest load of a coordinator partition since the start, by topic.",
    "topic",
    kafka="transaction-coordinator-metrics, group-coordinator-metrics partition-load-time-max",
)
COORDINATOR_MOVES: Final = _counter(
    "coordinator_moves",
    "Coordinator partitions that this broker has taken over from another broker, by topic.",
    "topic",
)
SCRAPE_SECONDS: Final = _gauge(
    "scrape_seconds", "How long the broker took to collect the last scrape before this one."
)

# -- the parent process of a cluster
CLUSTER_BROKERS: Final = _gauge(
    "cluster_broker_serving",
    "1 if the broker serves clients; of the parent.",
    "broker",
    kafka="KafkaController ActiveBrokerCount",
)
CLUSTER_RESTARTS: Final = _counter(
    "cluster_broker_restarts",
    "Times that the parent has started a broker again; of the parent.",
    "broker",
)

METRICS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
