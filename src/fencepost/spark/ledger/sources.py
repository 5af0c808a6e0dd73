"""Whether a query's sources are topics of the sink's own cluster.

Only then can the sink's transaction commit their offsets, and only then can the ledger record the
ids of their topics. Spark's plan has the options of every source, ours and Spark's own; the cluster
they point to returns its id (`read_topics.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.spark.engine.read_topics import (
    NO_TOPICS,
    ReadTopics,
    find_difference,
    read_topics,
)
from fencepost.spark.failures import SinkRefused
from fencepost.spark.offsets import parse_sources

if TYPE_CHECKING:
    from fencepost.client.options import ClientOptions
    from fencepost.spark.engine.micro_batch import MicroBatch


class SourceUse(NamedTuple):
    """What the sink does with the source offsets."""

    are_ours: bool = False
    """Whether all sources are topics of the sink's cluster."""
    commits: bool = False
    """Whether the transaction commits their offsets."""
    read: ReadTopics = NO_TOPICS
    """The topics of the sink's cluster that the query reads, as far as the plan shows them."""
    are_known: bool = True
    """Whether the plan shows any source."""


NO_SOURCES: Final = SourceUse()


def use_sources(
    commit_source_offsets: bool | None, micro_batch: MicroBatch, sink: ClientOptions
) -> SourceUse:
    """What the sink may do with the sources; SinkRefused if it must commit offsets and cannot."""
    listed = micro_batch.source_options()
    known = [options for options in listed if options is not None]
    differences = [find_difference(options, sink) for options in known]
    foreign = next(filter(None, differences), None)
    if not known or None in listed or parse_sources(micro_batch.end_offsets) is None:
        foreign = micro_batch.sources_unknown
    if foreign is not None and commit_source_offsets:
        raise SinkRefused(
            f"commit_source_offsets is True, but {foreign}: a transaction can hold only offsets of "
            "its own cluster. Leave commit_source_offsets out; Spark's checkpoint alone then keeps "
            "the position in the source"
        )
    are_ours = foreign is None
    read = read_topics(known[n] for n, difference in enumerate(differences) if difference is None)
    return SourceUse(are_ours, are_ours and commit_source_offsets is not False, read, bool(listed))
