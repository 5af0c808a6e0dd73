"""Whether a query's sources are topics of the sink's own cluster.

Only then can the sink's transaction commit their offsets, and only then can the ledger record the
ids of their topics. Spark's plan has the options of every source, ours and Spark's own; the cluster
they point to returns its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fencepost.base.failures import FencepostError
from fencepost.client.options import KNOWN, ClientOptions, read_options
from fencepost.spark.connection import cluster_of
from fencepost.spark.failures import SinkRefused
from fencepost.spark.offsets import parse_sources

if TYPE_CHECKING:
    from fencepost.spark.sink.batch.micro_batch import MicroBatch


class SourceUse(NamedTuple):
    """What the sink does with the source offsets."""

    are_ours: bool = False
    """Whether all sources are topics of the sink's cluster."""
    commits: bool = False
    """Whether the transaction commits their offsets."""


def use_sources(
    commit_source_offsets: bool | None, micro_batch: MicroBatch, sink: ClientOptions
) -> SourceUse:
    """Whether the transaction commits the source offsets; SinkRefused if it must and cannot."""
    foreign = find_foreign_source(micro_batch, sink)
    if foreign is not None and commit_source_offsets:
        raise SinkRefused(
            f"commit_source_offsets is True, but {foreign}: a transaction can hold only offsets of "
            "its own cluster. Leave commit_source_offsets out; Spark's checkpoint alone then keeps "
            "the position in the source"
        )
    are_ours = foreign is None
    return SourceUse(are_ours, are_ours and commit_source_offsets is not False)


def find_foreign_source(micro_batch: MicroBatch, sink: ClientOptions) -> str | None:
    """Why the sink's transaction cannot commit the source offsets; None if it can."""
    sources = micro_batch.source_options()
    if not sources or parse_sources(micro_batch.end_offsets) is None:
        return micro_batch.sources_unknown
    for options in sources:
        if (reason := _find_difference(options, sink)) is not None:
            return reason
    return None


def _find_difference(options: Mapping[str, str], sink: ClientOptions) -> str | None:
    given = {name.lower().removeprefix("kafka."): value for name, value in options.items()}
    servers = given.get("bootstrap.servers", "")
    try:
        source = read_options(servers, {name: given[name] for name in given.keys() & KNOWN})
        if set(source.bootstrap) & set(sink.bootstrap):
            return None
        theirs = cluster_of(source).describe_cluster().cluster_id
        ours = cluster_of(sink).describe_cluster().cluster_id
    except FencepostError as problem:
        return (
            f"the cluster at {servers or 'no kafka.bootstrap.servers'} did not return its id "
            f"({problem})"
        )
    if theirs == ours:
        return None
    return (
        f"the query reads from cluster {theirs} ({servers}), and the sink writes to cluster {ours}"
    )
