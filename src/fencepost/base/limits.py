"""Every bound of the broker in one place, each with its reason and Kafka's own default beside it.

What a user may change is a config (`broker/settings/config.py`) whose default is one of these; the
rest are fixed, because a larger value would only move the moment at which memory runs out.
"""

from __future__ import annotations

from typing import Final

MAX_REQUEST_BYTES: Final = 104_857_600
"""socket.request.max.bytes, Kafka's default: one frame is held in memory as a whole."""

MAX_REQUESTS_IN_FLIGHT: Final = 64
"""Requests of one connection that may wait for their answers. Kafka answers one at a time; clients
keep at most 5 (Java, idempotent) or a few dozen (librdkafka) unanswered. Past this we stop reading
from the socket."""

MAX_UNSENT_BYTES: Final = 64 * 1024
"""Replies that a client has not read, beyond what the kernel has taken. Past this we serve none of
its requests until a quarter is left, and what it holds counts against `QUEUED_RESPONSE_BYTES`: a
client that stops reading must not cost memory without bound."""

QUEUED_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""queued.max.response.bytes: memory for the replies of all connections that have not been read.
Five of the largest fetch replies, or a thousand of librdkafka's usual ones; Kafka sends from the
page cache and has no such bound. A connection below `MAX_UNSENT_BYTES` is not counted: 10,000 of
them could take 640 MB at the very most, and 100 of them 6 MB."""

QUEUED_REQUEST_BYTES: Final = 256 * 1024 * 1024
"""queued.max.request.bytes: large requests of all connections, from their first part on until they
have taken effect. Kafka's default is no bound. A request that fits into the inbox of its connection
(32 KB) is not counted."""

LEAST_REPLY_BYTES: Final = 64 * 1024
"""What a fetch may bring while replies take nearly all of their memory; one batch it always may."""

SHARE_OF_MEMORY: Final = 4
"""A reply takes at most the fourth part of what is left for all, so that no few clients can take it
all."""

STUCK_SECONDS: Final = 10.0
STUCK_BYTES: Final = 256 * 1024
"""A connection that moved fewer bytes in so many seconds is closed if it holds memory that others
wait for: its client has stopped reading, or sends a large request so slowly that it keeps them from
theirs."""

MAX_CONNECTIONS: Final = 10_000
"""max.connections. Kafka's default is unlimited. Where the process may open too few files for as
many, fewer are taken (`broker/storage/descriptors.py`)."""

FETCH_RESPONSE_MAX_BYTES: Final = 55 * 1024 * 1024
"""fetch.max.bytes of the broker, Kafka's default."""

MAX_BATCH_BYTES: Final = 1_048_588
"""message.max.bytes, Kafka's default: 1 MiB of records plus the overhead of a log entry."""

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""What one batch may expand to where it must be opened: a small batch can claim to hold
terabytes."""

MAX_ARRAY_ITEMS: Final = 200_000
"""Items of one array in a request. Every item takes at least a byte, so the frame bounds it as
well; this keeps 100 MB of one-byte items from becoming gigabytes of Python objects and seconds of
the loop."""

MAX_STRING_BYTES: Final = 32_767
"""Of one string on the wire: the largest signed 16-bit length, in every version of the protocol."""

PRODUCER_ID_BLOCK_SIZE: Final = 1_000
"""Producer ids reserved at once in the metadata log, as Kafka does."""

BATCHES_REMEMBERED_PER_PRODUCER: Final = 5
"""Kafka's window for duplicates: the most that an idempotent client keeps in flight."""

MAX_TOPIC_NAME_LENGTH: Final = 249
"""Kafka's: the folder name topic-partition must stay below the 255 bytes of a file name."""

MAX_OFFSET_METADATA_BYTES: Final = 4096
"""offset.metadata.max.bytes, Kafka's default."""

MAX_GROUP_SIZE: Final = 10_000
"""group.max.size. Kafka's default is unlimited."""
