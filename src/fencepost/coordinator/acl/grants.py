"""The rights that a program needs, and no others, as operations on resources in words.

`tests/cli/commands/test_acl.py` shows that each set is enough, and that each right is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LEDGER_TOPIC: Final = "fencepost-ledger"
"""Where the Spark sink keeps its ledger unless it is told otherwise."""


def producer_rights(topics: Sequence[str]) -> list[tuple[str, str]]:
    """WRITE on a topic implies DESCRIBE, and is enough for a producer id."""
    return [("write", f"topic:{topic}") for topic in topics]


def consumer_rights(topics: Sequence[str], group: str) -> list[tuple[str, str]]:
    """READ implies DESCRIBE, for metadata, offsets and the group's coordinator."""
    return [*(("read", f"topic:{topic}") for topic in topics), ("read", f"group:{group}")]


def transactional_rights(
    transactional_id: str, topics: Sequence[str], sources: Sequence[str], group: str | None
) -> list[tuple[str, str]]:
    """A producer of transactions, and the consumer whose offsets it commits."""
    rights = [("write", f"txn:{transactional_id}"), *producer_rights(topics)]
    rights += [("read", f"topic:{topic}") for topic in sources]
    if group is not None:
        rights.append(("read", f"group:{group}"))
    return rights


def spark_sink_rights(
    transactional_id: str, topics: Sequence[str], sources: Sequence[str], ledger: str
) -> list[tuple[str, str]]:
    """The table of docs/deploy.md: the ledger, the output, and the offsets of the sources."""
    rights = [
        ("write", f"txn:{transactional_id}"),
        *producer_rights(topics),
        *(("describe_configs", f"topic:{topic}") for topic in topics),
        ("read", f"topic:{ledger}"),
        ("write", f"topic:{ledger}"),
        ("describe_configs", f"topic:{ledger}"),
    ]
    if sources:
        rights += consumer_rights(sources, f"fencepost-{transactional_id}")
    return rights
