"""Every size, count and wait that a client can run into, each with its reason.

A limit that users may change is the default of a setting (`broker/settings/tables.py`), which is
named here. The others are fixed: a larger value would only delay the moment at which memory runs
out. Bounds of the broker's own work (records per turn, retry pauses) are beside the code that they
pace, file descriptors in `broker/storage/descriptors.py`.
"""

from __future__ import annotations

from typing import Final

# -- connections and memory
# ------------------------------------------------------------------------------------------------

MAX_CONNECTIONS: Final = 10_000
"""max.connections. Kafka's default is unlimited. A process that may open fewer files accepts fewer
connections (`broker/storage/descriptors.py`)."""

MAX_REQUESTS_IN_FLIGHT: Final = 64
"""Unanswered requests of one connection. Kafka serves one at a time; clients keep at most 5 (Java,
idempotent) or a few dozen (librdkafka) in flight. At this number the broker stops reading from the
socket."""

MAX_UNSENT_BYTES: Final = 64 * 1024
"""Replies of one connection that its client has not read, beyond the kernel's buffers. Above it the
broker serves none of the connection's requests until a quarter is left, and its replies count
against `QUEUED_RESPONSE_BYTES`: a client that stops reading must not cost unbounded memory."""

QUEUED_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""queued.max.response.bytes: memory for the unread replies of all connections. It holds five of the
largest fetch replies, or a thousand of librdkafka's usual ones. Kafka sends from the page cache and
has no such bound. Connections below `MAX_UNSENT_BYTES` do not count: 10,000 of them take at most
640 MB, 100 of them 6 MB."""

QUEUED_REQUEST_BYTES: Final = 256 * 1024 * 1024
"""queued.max.request.bytes: memory for the large requests of all connections, from the first byte
until they have taken effect. Kafka's default is unlimited. A request that fits into the inbox of
its connection (32 KB) does not count."""

LEAST_REPLY_BYTES: Final = 64 * 1024
"""The size that a fetch reply may have even when unread replies use nearly all of their memory. The
first batch is always returned."""

SHARE_OF_MEMORY: Final = 4
"""A reply uses at most one fourth of the memory that is left, so that a few clients cannot use it
all."""

HANDSHAKE_SECONDS: Final = 10.0
"""How long a client may take for its TLS handshake. Clients need milliseconds, or a few round trips
of a slow link. Kafka waits for connections.max.idle.ms."""

LOGIN_SECONDS: Final = 60.0
"""How long a connection to a listener with SASL may be without a login, from its acceptance on:
more than a TLS handshake, its turn and the queue for the hasher take. Kafka waits for
connections.max.idle.ms, and begins anew with each request."""

MAX_BYTES_BEFORE_LOGIN: Final = 32_764
"""sasl.server.max.receive.size: the largest request of a client that has not logged in. With its
size it fits into the inbox that each connection has anyway (32 KB), so strangers take nothing from
`QUEUED_REQUEST_BYTES`: all of them together hold 320 MB at `MAX_CONNECTIONS`, and a listener's own
max.connections makes that less. Kafka's 512 KB are for tokens of Kerberos with hundreds of groups,
which this broker does not accept; PLAIN and SCRAM send less than 1 KB."""

FETCH_MEMORY_WAIT_MS: Final = 1_000
"""How long a fetch waits for memory before it is answered without records; the client fetches
again."""

STUCK_SECONDS: Final = 10.0
STUCK_BYTES: Final = 256 * 1024
"""A connection that moves fewer than STUCK_BYTES in STUCK_SECONDS is closed if it holds memory that
other connections wait for: its client has stopped reading, or sends a large request too slowly."""

# -- requests and replies
# ------------------------------------------------------------------------------------------------

MAX_REQUEST_BYTES: Final = 104_857_600
"""socket.request.max.bytes, Kafka's default: a frame is held in memory as a whole."""

MAX_REQUEST_ITEMS: Final = 50_000
"""Items of all arrays of one request together: topics, partitions, groups, settings. A request is
decoded, and its reply encoded, in one turn of the loop; for 50,000 names that takes 45 and 15 ms.
Their rights and the rest are looked at over several turns (`broker/turns.py`). Kafka has no such
bound but socket.request.max.bytes. Clients name each topic or partition once, and a machine serves
some 20,000 partitions; a tool that wants all topics sends no names. The largest legal request that
we know is CreateTopics with `MAX_NEW_PARTITIONS` and three replicas by hand, 40,001 items. A larger
request closes the connection, with a line in the log."""

MAX_ARRAY_ITEMS: Final = 200_000
"""Items of the arrays of any other message that we read: a reply, a record of an internal topic.
Each item takes at least a byte, so the frame bounds it too; this keeps 100 MB of one-byte items
from becoming gigabytes of Python objects."""

MAX_STRING_BYTES: Final = 32_767
"""Bytes of one string on the wire: the largest signed 16-bit length, in every version of the
protocol."""

FETCH_RESPONSE_MAX_BYTES: Final = 55 * 1024 * 1024
"""fetch.max.bytes of the broker, Kafka's default."""

MAX_BATCH_BYTES: Final = 1_048_588
"""message.max.bytes, Kafka's default: 1 MiB of records plus the overhead of a log entry."""

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""The size to which one batch may decompress. Kafka has no such bound; a batch of 1 MB can hold a
gigabyte of zeros (gzip), or claim terabytes (zstd). A produced batch that holds more is refused, so
that all of our readers can open what the broker accepts. Clients send about 1 MB before
compression, and 250 times the largest batch leaves room for those that count afterwards. The broker
decompresses at most one batch above `partition.opening.SHORT_BYTES` at a time, and the scrub one
more: that is all the memory that bombs can take."""

MAX_RECORD_ERRORS: Final = 100
"""Records that a produce reply names when it refuses a batch; the first hundred are enough to find
the bug."""

# -- topics and settings
# ------------------------------------------------------------------------------------------------

MAX_TOPIC_NAME_LENGTH: Final = 249
"""As in Kafka: the folder name topic-partition must fit into the 255 bytes of a file name."""

MAX_NEW_PARTITIONS: Final = 10_000
"""Partitions that one request may create, as in Kafka: a mistyped count must not fill the disk with
folders."""

# -- transactions
# ------------------------------------------------------------------------------------------------

PRODUCER_ID_BLOCK_SIZE: Final = 1_000
"""Producer ids that one record of the metadata log reserves, as in Kafka."""

BATCHES_REMEMBERED_PER_PRODUCER: Final = 5
"""Kafka's window for duplicates: the most batches that an idempotent client keeps in flight."""

END_TXN_WAIT_MS: Final = 5_000
"""How long EndTxn waits for its markers before it is answered with the decision alone. Clients give
up a request after 30 s (Java, kafka-python), 40 s (aiokafka) or 60 s (librdkafka), and applications
often wait 10 s for a commit."""

IMPLICIT_ADD_WAIT_MS: Final = 100
"""How long a first write waits for the end of the previous transaction before it is refused with
CONCURRENT_TRANSACTIONS: Kafka's add.partitions.to.txn.retry.backoff.max.ms."""

FIRST_WRITE_WAIT_MS: Final = 5_000
"""How long a first write waits for a coordinator on another broker: for its reply, and for the next
coordinator if that broker is dead or its log is being loaded. Another broker takes over in about a
second. After this time the producer gets NOT_ENOUGH_REPLICAS, which it retries: a broker that hangs
is killed only after broker.session.timeout.ms (9 s), and requests behind the write wait for it."""

MAX_PATTERN_MEMORY_BYTES: Final = 1 << 20
"""For one compiled pattern of ListTransactions. RE2's default is 8 MiB; a smaller program also
matches faster when a hostile pattern exhausts its DFA cache."""

MAX_CERTIFICATE_NAME_LENGTH: Final = 4096
"""Letters of the name in a client certificate, of which OpenSSL accepts 100 KB. Some patterns of
ssl.principal.mapping.rules cost the square of it: 20 ms for this many, and 6 s for 100,000."""

# -- groups
# ------------------------------------------------------------------------------------------------

MAX_GROUP_SIZE: Final = 10_000
"""group.max.size. Kafka's default is unlimited."""

MAX_OFFSET_METADATA_BYTES: Final = 4096
"""offset.metadata.max.bytes, Kafka's default."""

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a member that was never in a generation may wait in the join phase, as in Kafka. Its
client may have given up and tried again without an id, and each try would leave a member behind."""
