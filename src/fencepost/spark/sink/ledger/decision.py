"""What to do with a micro-batch, given the last entry of its transactional id.

Theory of operation. Every transaction of the sink also writes one record to a compacted topic
(`topic.py`): the key is the transactional id, the value a `LedgerEntry`. So after any crash the
question "is batch 7 in Kafka?" has one answer, and Kafka gives it, regardless of Spark's
checkpoint.

Spark repeats the newest batch whose end it has not logged, with the same id and the same source
offsets, and never an older one. `decide` is this table; the first matching row decides:

    ledger                               batch b of query q
    an older fencepost wrote after       refuse; adopt: write
      the ledger moved to its topic
    none, but the legacy place says      refuse: the topic was lost; adopt: write
      "moved"
    none                                 write if b is 0 or `may_skip`, else refuse; adopt: write
    q, b, other fingerprint              refuse: the checkpoint was changed under the query
    q, b, written in this very run       refuse: a second call for the batch
    q, b, some parts of b are missing,   refuse; adopt: write the missing parts if nothing else
      or a second call was refused         differs, else drain
    q, b                                 drain: run the plan for the query's state, write nothing
    q, a later batch than b              refuse: the checkpoint is older than the topics
    q, a second call for the last        refuse: the last batch lacks rows; adopt: write
      batch was refused
    q, b - 1                             write
    q, an earlier batch                  refuse: batches were skipped, or the cluster is older than
                                           the checkpoint; write with adopt, or with `may_skip`
                                           unless a batch in between is known to have failed
    another query p                      take over if `take_over` names p or this batch begins
                                           exactly where the entry's sources end, else refuse;
                                           adopt: take over

`take_over` does not override source offsets that contradict the start of the batch: the entry's
offsets were written in the same transaction as the rows, so they are exact. The offsets of the
consumer group are not consulted, because a run with commit_source_offsets=False leaves them behind.
A partition that is new since the entry must be read from its beginning, and topic ids must match,
or the offsets of two different topics would be compared. A stateful query that takes over with a
new checkpoint has lost its state, so it is refused unless `allow_empty_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from fencepost.spark.sink.ledger.entry import (
    LedgerEntry,
    LedgerView,
    LegacyLedger,
    Offsets,
    starting_offsets,
)


class Verdict(Enum):
    """What to do with a batch."""

    WRITE = "write"
    DRAIN = "drain"
    TAKE_OVER = "take over"
    COMPLETE = "complete"
    """Write the missing parts of a committed batch."""
    REFUSE = "refuse"


class Decision(NamedTuple):
    """The verdict and the reason, for the user."""

    verdict: Verdict
    reason: str
    missing: tuple[str, ...] = ()
    """The parts to write if the verdict is COMPLETE."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The facts about a micro-batch that `decide` compares with the ledger."""

    query_id: str
    batch_id: int
    fingerprint: str = ""
    start: Offsets | None = None
    """The start offsets of its sources; None if unknown or if some source is not a topic."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The current ids of the topics in `start`, as far as they are known."""
    beginnings: Offsets = field(default_factory=dict)
    """The first offsets of partitions that do not begin at 0."""
    is_stateful: bool | None = None
    parts: tuple[str, ...] | None = None
    """The topics of its DataFrames; None if they do not matter."""
    run_id: str = ""
    """The run that called the sink; empty if the run repeats its own call."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The sink's arguments that allow what the ledger would refuse."""

    adopt: bool = False
    take_over: str | None = None
    allow_empty_state: bool = False
    may_skip: bool = False


NO_OVERRIDES: Final = Overrides()


def decide(view: LedgerView, batch: Batch, overrides: Overrides = NO_OVERRIDES) -> Decision:
    """Applies the table in the module docstring."""
    entry, legacy = view.entry, view.legacy
    if view.place is not None and legacy is not None and legacy.entry is not None:
        return _decide_rival(legacy.entry, overrides)
    if entry is None:
        return _decide_without_entry(legacy, batch, overrides)
    if entry.query_id != batch.query_id:
        return _decide_other_query(entry, batch, overrides)
    if entry.batch_id == batch.batch_id:
        return _decide_repetition(entry, batch, overrides)
    if entry.batch_id < batch.batch_id:
        return _decide_later(entry, batch, overrides)
    return Decision(
        Verdict.REFUSE,
        f"the last batch of this query in the topics is {entry.batch_id}, which is newer than "
        f"batch {batch.batch_id} of the checkpoint: the checkpoint was restored from a backup or "
        "edited. Restore the checkpoint that matches the topics, or start with an empty checkpoint "
        "and another transactional_id",
    )


def _decide_rival(legacy: LedgerEntry, overrides: Overrides) -> Decision:
    if overrides.adopt:
        return Decision(Verdict.WRITE, "an older fencepost has written since; adopted")
    return Decision(
        Verdict.REFUSE,
        f"an older version of fencepost has written batch {legacy.batch_id} of query "
        f"{legacy.query_id} after the ledger moved to its own topic, and the two entries disagree. "
        "Use one version per transactional_id. Check the end of the topics; if this batch is not "
        "there, pass adopt=True once",
    )


def _decide_without_entry(
    legacy: LegacyLedger | None, batch: Batch, overrides: Overrides
) -> Decision:
    if overrides.adopt:
        return Decision(Verdict.WRITE, "no ledger, adopted")
    if legacy is not None:
        return Decision(
            Verdict.REFUSE,
            "the ledger of this transactional_id has moved to its own topic, but the topic has no "
            "record of it: the topic was deleted and created again, or ledger_topic= names "
            "another one. The sink cannot tell whether the batch is in the topics. Correct "
            "ledger_topic=; or check the end of the topics, and if the batch is not there, pass "
            "adopt=True once",
        )
    if batch.batch_id == 0 or overrides.may_skip:
        return Decision(Verdict.WRITE, "the first batch, and no ledger")
    return Decision(
        Verdict.REFUSE,
        f"batch {batch.batch_id} is not the first one, but the cluster has no ledger of this "
        "transactional_id: its record or its topic was deleted, ledger_topic= names another topic, "
        "this is another cluster, or your function has not called the sink for any earlier batch. "
        "The sink cannot tell whether the batch is in the topics. Check the end of the topics; if "
        "the batch is not there, pass adopt=True once. For batches without rows call "
        "sink.skip(batch_id), or pass may_skip=True",
    )


def _decide_repetition(entry: LedgerEntry, batch: Batch, overrides: Overrides) -> Decision:
    known = entry.fingerprint and batch.fingerprint
    if known and entry.fingerprint != batch.fingerprint:
        return Decision(
            Verdict.REFUSE,
            f"batch {batch.batch_id} is already in the topics, but with other source offsets than "
            "the checkpoint has for it: the checkpoint was edited, or two queries use it. Restore "
            "the checkpoint that matches the topics, or start with an empty checkpoint and another "
            "transactional_id",
        )
    if batch.run_id and batch.run_id == entry.run_id:
        return Decision(
            Verdict.REFUSE,
            f"batch {batch.batch_id} was already written in this run of the query by another sink "
            "with the same transactional_id: call one sink once per batch. Put all DataFrames of a "
            'batch into one call, sink.write({"topic": df, ...}, batch_id)',
        )
    written, wanted = entry.parts or (), batch.parts or ()
    missing = tuple(name for name in wanted if name not in written)
    is_known = entry.parts is not None and batch.parts is not None
    if not (entry.is_short or (is_known and missing)):
        return Decision(Verdict.DRAIN, f"batch {batch.batch_id} is already in the topics")
    if not overrides.adopt:
        return _refuse_incomplete(entry, batch, missing)
    if missing and set(written) <= set(wanted):
        return Decision(Verdict.COMPLETE, f"adopted; {_names(missing)} were missing", missing)
    return Decision(Verdict.DRAIN, f"batch {batch.batch_id} is in the topics, adopted as it is")


def _refuse_incomplete(entry: LedgerEntry, batch: Batch, missing: tuple[str, ...]) -> Decision:
    written = _names(entry.parts or ())
    if entry.is_short:
        return Decision(
            Verdict.REFUSE,
            f"batch {batch.batch_id} is in the topics with the rows of its first call only "
            f"({written}): a second call for it was refused. Put all DataFrames of a batch into "
            'one call, sink.write({"topic": df, ...}, batch_id), and pass adopt=True once: the '
            "sink then writes the DataFrames of the topics that the first call did not write to. "
            "If both calls wrote to the same topic, write its missing rows by other means first: "
            "adopt=True accepts that topic as it is",
        )
    if set(entry.parts or ()) <= set(batch.parts or ()):
        remedy = "Pass adopt=True once: the sink writes what is missing and continues"
    else:
        remedy = (
            "Check the topics; pass adopt=True once to accept the batch as it is and write nothing "
            "more, or go back to the code that wrote it"
        )
    return Decision(
        Verdict.REFUSE,
        f"batch {batch.batch_id} is already in the topics, but not all of it: it was written "
        f"with {written}, and this call also has {_names(missing)}. {remedy}",
    )


def _names(parts: tuple[str, ...]) -> str:
    return ", ".join(map(repr, parts)) or "no rows"


def _decide_later(entry: LedgerEntry, batch: Batch, overrides: Overrides) -> Decision:
    if overrides.adopt:
        return Decision(Verdict.WRITE, f"batch {entry.batch_id} is the last one, adopted")
    if entry.is_short:
        return Decision(
            Verdict.REFUSE,
            f"batch {entry.batch_id} of this query lacks rows: a second call for it was refused, "
            "and the query went on. Write the missing rows by other means, or go back to a "
            "checkpoint from before that batch with another transactional_id; then pass adopt=True "
            "once",
        )
    if entry.batch_id == batch.batch_id - 1:
        return Decision(Verdict.WRITE, f"batch {entry.batch_id} is the last one in the topics")
    if entry.lost is not None and entry.batch_id < entry.lost < batch.batch_id:
        return Decision(
            Verdict.REFUSE,
            f"batch {entry.lost} of this query is not in the topics: the sink failed, and your "
            f"function caught the exception. {_how_to_repeat(entry)}; or pass adopt=True once to "
            "continue without its rows",
        )
    if overrides.may_skip:
        return Decision(
            Verdict.WRITE, f"batch {entry.batch_id} is the last one, others were skipped"
        )
    return Decision(
        Verdict.REFUSE,
        f"the last batch of this query in the topics is {entry.batch_id}, and the checkpoint "
        f"continues with batch {batch.batch_id}. If your function did not call the sink for the "
        "batches in between because they had no rows, call sink.skip(batch_id) for such batches or "
        "pass may_skip=True to the sink; adopt=True, once, gets past this gap. If a call failed "
        "and your function caught the exception, or the cluster was restored from a backup, rows "
        f"are missing. {_how_to_repeat(entry)}",
    )


def _how_to_repeat(entry: LedgerEntry) -> str:
    return (
        f"To write them, restore a checkpoint whose last batch is {entry.batch_id}, or start with "
        f"an empty checkpoint where the output ends{_starting_offsets(entry)} and pass "
        f'take_over="{entry.query_id}"'
    )


def _decide_other_query(entry: LedgerEntry, batch: Batch, overrides: Overrides) -> Decision:
    difference = find_difference(entry, batch)
    if overrides.adopt:
        reason = f"adopted from query {entry.query_id}"
    elif overrides.take_over is not None and overrides.take_over != entry.query_id:
        return Decision(
            Verdict.REFUSE,
            f"take_over names query {overrides.take_over}, but the transactional_id belongs to "
            f"query {entry.query_id} (last batch {entry.batch_id}), and this is query "
            f"{batch.query_id}. Run `fencepost ledger show`, and name the query that this one "
            "continues",
        )
    elif difference is None or (overrides.take_over is not None and difference.is_unknown):
        reason = f"continues where batch {entry.batch_id} of {entry.query_id} ended"
    elif overrides.take_over is not None:
        return Decision(
            Verdict.REFUSE,
            f"take_over names query {entry.query_id}, but this query does not begin where its "
            f"batch {entry.batch_id} ended: {difference.words}. Start from "
            f"there{_starting_offsets(entry)}, or pass adopt=True once if you are sure that no row "
            "is written twice",
        )
    else:
        return Decision(
            Verdict.REFUSE,
            f"the transactional_id belongs to query {entry.query_id} (last batch "
            f"{entry.batch_id}), and this is query {batch.query_id}: either two queries use one "
            "id, or the checkpoint is new and would write rows again that are in the topics "
            f"({difference.words}). Give this query its own transactional_id; or, after a lost "
            f"checkpoint, start where the output ends{_starting_offsets(entry)} and pass "
            f'take_over="{entry.query_id}"; or pass adopt=True once if you know where it begins',
        )
    return _decide_state(entry, batch, overrides, reason)


def _decide_state(entry: LedgerEntry, batch: Batch, overrides: Overrides, reason: str) -> Decision:
    """A new checkpoint has no state. A checkpoint past batch 0 brings its own."""
    is_stateful = entry.is_stateful if batch.is_stateful is None else batch.is_stateful
    if is_stateful and batch.batch_id == 0 and not overrides.allow_empty_state:
        return Decision(
            Verdict.REFUSE,
            "this query keeps state, and its checkpoint is new: it would continue query "
            f"{entry.query_id} (last batch {entry.batch_id}) with empty state, and its counts, "
            "windows or deduplication would be wrong. Restore the checkpoint; or read the source "
            "from its beginning into other topics with another transactional_id; or pass "
            "allow_empty_state=True once if empty state is right",
        )
    return Decision(Verdict.TAKE_OVER, reason)


def _starting_offsets(entry: LedgerEntry) -> str:
    if not entry.sources:
        return ""
    return f" (startingOffsets='{starting_offsets(entry)}')"


class Difference(NamedTuple):
    """Why a batch does not provably begin where an entry ends."""

    words: str
    is_unknown: bool = False
    """Whether the two could not be compared, so nothing is proven either way."""


def find_difference(entry: LedgerEntry, batch: Batch) -> Difference | None:
    """None if the batch begins exactly where the sources of the entry end."""
    if not entry.sources:
        return Difference("the entry does not say where its sources ended", is_unknown=True)
    if not batch.start:
        return Difference("the start offsets of this query are not known", is_unknown=True)
    return _find_other_topic(entry, batch) or _find_other_offset(entry.sources, batch)


def _find_other_topic(entry: LedgerEntry, batch: Batch) -> Difference | None:
    for topic in sorted({tp.topic for tp in entry.sources or ()}):
        then, now = entry.topic_ids.get(topic), batch.topic_ids.get(topic)
        if then is None or now is None:
            words = f"it is not known whether topic {topic!r} is still the same one"
            return Difference(words, is_unknown=True)
        if then != now:
            return Difference(f"topic {topic!r} was deleted and created again since")
    return None


def _find_other_offset(ended: Offsets, batch: Batch) -> Difference | None:
    start = batch.start or {}
    for tp in sorted(ended.keys() | start.keys()):
        if tp not in start:
            return Difference(f"it does not read {tp}")
        # The entry's query has not read a partition that is new since.
        due = ended.get(tp, batch.beginnings.get(tp, 0))
        if start[tp] != due:
            return Difference(f"{tp} ended at {due} and would begin at {start[tp]}")
    return None
