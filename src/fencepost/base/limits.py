"""Every bound of the broker in one place, each with its reason and Kafka's own default beside it.

What a user may change is a config (`broker/config.py`) whose default is one of these; the rest are fixed,
because a larger value would only move the moment at which memory runs out.
"""

from __future__ import annotations

from typing import Final

MAX_REQUEST_BYTES: Final = 104_857_600
"""socket.request.max.bytes, Kafka's default: one frame is held in memory as a whole."""

MAX_REQUESTS_IN_FLIGHT: Final = 64
"""Requests of one connection that may wait for their answers. Kafka answers one at a time; clients keep at
most 5 (Java, idempotent) or a few dozen (librdkafka) unanswered. Past this we stop reading from the socket."""

MAX_UNSENT_BYTES: Final = 16 * 1024 * 1024
"""Replies that a client has not read. Past this we stop reading its requests until it drains: a client that
stops reading must not cost memory without bound."""

MAX_CONNECTIONS: Final = 10_000
"""max.connections. Kafka's default is unlimited. Where the process may open too few files for as many, fewer are taken
(`broker/descriptors.py`)."""

FETCH_RESPONSE_MAX_BYTES: Final = 55 * 1024 * 1024
"""fetch.max.bytes of the broker, Kafka's default."""

MAX_BATCH_BYTES: Final = 1_048_588
"""message.max.bytes, Kafka's default: 1 MiB of records plus the overhead of a log entry."""

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""What one batch may expand to where it must be opened: a small batch can claim to hold terabytes."""

MAX_ARRAY_ITEMS: Final = 200_000
"""Items of one array in a request. Every item takes at least a byte, so the frame bounds it as well; this
keeps 100 MB of one-byte items from becoming gigabytes of Python objects and seconds of the loop."""

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
