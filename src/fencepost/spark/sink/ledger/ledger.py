"""The ledger: which micro-batch is in the topics, written by the very transaction that put it there.

Theory of operation. Every transaction of the sink also writes one record to a compacted topic
(`topic.py`): the key is the transactional id, the value is this module's `LedgerEntry` as JSON. So
after any crash the question "is batch 7 in Kafka?" has one answer, and Kafka gives it, whatever
Spark's checkpoint believes. `reader.py` finds the newest committed record of an id, `keeper.py`
reads and writes it for the sink, and `former.py` knows the place where older versions of this
package kept it.

Spark repeats the newest batch whose end it has not logged, with the same id and the same source
offsets, and never an older one. `decide` is the table of what to do then; the first line that fits
decides:

    ledger                                   batch b of query q
    an older fencepost has written since     refuse; adopt: write
      the ledger moved to its topic
    none, but the old place says "moved"     refuse: the topic was lost; adopt: write
    none                                     write if b is 0 or `may_skip`, else refuse; adopt: write
    q, b, other fingerprint                  refuse: the checkpoint was changed under the query
    q, b, written in this very run           refuse: a second call for the batch
    q, b, some parts of b are missing, or a  refuse; adopt: write the missing parts if nothing else differs, else drain
      second call for b was refused
    q, b                                     drain: run the query's plan for its state, write nothing
    q, a later one than b                    refuse: the checkpoint is older than the topics
    q, a second call for the last batch      refuse: it lacks rows; adopt: write
      was refused
    q, b - 1                                 write
    q, an earlier one                        refuse: batches were skipped, or the cluster is older than the checkpoint;
                                             `may_skip` unless a batch between has failed, or adopt: write
    another query p                          take over if `take_over` names p or this batch begins exactly where the
                                             entry's sources end, else refuse; adopt: take over

A take-over is refused, in spite of `take_over`, where the source offsets in the entry contradict
the start of the batch: they were written in the same transaction as the rows, so they are exact.
Offsets of the consumer group are not consulted: a run with commit_source_offsets=False leaves them
behind. A partition that is new since the entry must begin at its beginning, and topic ids must
agree, or offsets of two different topics would be compared. A stateful query that takes over with a
new checkpoint has lost its state, so it is refused unless `allow_empty_state`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from fencepost.base.ids import TopicPartition
from fencepost.spark.failures import EntryUnreadable
from fencepost.spark.offsets import from_layout, to_layout

VERSION: Final = 2
"""Of the record's JSON. Fields may be added without a new one: readers ignore what they do not
know."""

GROUP_PREFIX: Final = "fencepost-"

RECENT_BATCHES: Final = 16
"""How many batches the longest time counts: a batch that was slow once is forgotten after so many
others."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the last committed transaction said about itself."""

    query_id: str
    batch_id: int
    """The last batch in the topics; -1 before the first one of a query that was let in by hand."""
    fingerprint: str = ""
    recent_ms: tuple[int, ...] = ()
    """How long the last transactions were open, the newest last."""
    sources: Offsets | None = None
    """Where the sources of this batch end, missing topics included; None where they are not topics,
    or it is not known."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics in `sources`, where they are known."""
    sources_committed: bool = False
    """Whether the same transaction committed `sources` in the group of the transactional id."""
    is_stateful: bool | None = None
    """Whether the query keeps state; None where it is not known."""
    parts: tuple[str, ...] | None = None
    """What the batch consisted of: the topics of its DataFrames (`sink/parts.py`). Nothing for one
    that was skipped."""
    run_id: str = ""
    """The run of the query that wrote it: Spark does not repeat a batch within a run."""
    is_short: bool = False
    """Whether a second call for this batch was refused, so that the batch lacks its rows."""
    lost: int | None = None
    """A later batch that failed, and whose failure was caught, so that Spark went on."""
    serial: int = 0
    """One more than in the entry before: tells which of two records is newer, in whatever partition
    they are."""

    @property
    def longest_ms(self) -> int:
        """The longest time that one of the last transactions was open: what the timeout must exceed."""
        return max(self.recent_ms, default=0)

    def recent_with(self, open_ms: int) -> tuple[int, ...]:
        return (*self.recent_ms, open_ms)[-RECENT_BATCHES:]


class Verdict(Enum):
    """What to do with a batch."""

    WRITE = "write"
    DRAIN = "drain"
    TAKE_OVER = "take over"
    COMPLETE = "complete"
    """Write the parts that are missing in a batch that is in the topics."""
    REFUSE = "refuse"


class Decision(NamedTuple):
    """The verdict and, for people, why."""

    verdict: Verdict
    reason: str
    missing: tuple[str, ...] = ()
    """The parts to write, of a batch that is to be completed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as the ledger sees it."""

    query_id: str
    batch_id: int
    fingerprint: str = ""
    start: Offsets | None = None
    """Where its sources begin, if all of them are topics; None if they are not, or it is not
    known."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids that the topics in `start` have now, where they are known."""
    beginnings: Offsets = field(default_factory=dict)
    """Where partitions begin now, if not at 0."""
    is_stateful: bool | None = None
    parts: tuple[str, ...] | None = None
    """The topics of its DataFrames; None where they do not matter."""
    run_id: str = ""
    """The run that has called the sink; empty when it repeats a call of its own."""


@dataclass(frozen=True, slots=True)
class Permits:
    """What the user has allowed, as arguments of the sink."""

    adopt: bool = False
    take_over: str | None = None
    allow_empty_state: bool = False
    may_skip: bool = False


NO_PERMITS: Final = Permits()


class FormerLedger(NamedTuple):
    """What the group of a transactional id still says of the ledger that older versions kept there."""

    places: tuple[TopicPartition, ...]
    entry: LedgerEntry | None
    """None when the entry has moved to the ledger's topic."""


class Page(NamedTuple):
    """All that the cluster knows of one transactional id's ledger."""

    place: TopicPartition | None = None
    """Where the record is; None when there is none."""
    entry: LedgerEntry | None = None
    """The record, or else the entry at its old place."""
    former: FormerLedger | None = None
    is_settled: bool = True
    """False when a record has no marker, so that its transaction may be open."""


def group_of(transactional_id: str) -> str:
    """The group in which the sink of this transactional id commits the offsets of its sources."""
    return GROUP_PREFIX + transactional_id


def fingerprint_of(end_offsets: Iterable[str]) -> str:
    """A short name for the end offsets of all sources: equal for a batch and its repetition."""
    digest = hashlib.sha256("\n".join(sorted(end_offsets)).encode("utf-8"))
    return digest.hexdigest()[:16]


# The record.


def encode_entry(entry: LedgerEntry) -> bytes:
    """The value of the entry's record."""
    fields: dict[str, Any] = {
        "v": VERSION,
        "serial": entry.serial,
        "queryId": entry.query_id,
        "batchId": entry.batch_id,
        "fingerprint": entry.fingerprint,
        "recentMs": list(entry.recent_ms),
        "stateful": entry.is_stateful,
    }
    if entry.sources is not None:
        fields["sources"] = {
            topic: {"id": entry.topic_ids.get(topic), "offsets": offsets}
            for topic, offsets in to_layout(entry.sources).items()
        }
        fields["sourcesCommitted"] = entry.sources_committed
    if entry.parts is not None:
        fields["parts"] = list(entry.parts)
    if entry.run_id:
        fields["runId"] = entry.run_id
    if entry.is_short:
        fields["short"] = True
    if entry.lost is not None:
        fields["lost"] = entry.lost
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def decode_entry(value: bytes) -> LedgerEntry:
    """The reverse; EntryUnreadable for anything else."""
    try:
        fields = json.loads(value)
        version = fields["v"]
        if version != VERSION:
            raise EntryUnreadable(
                f"its format has version {version!r}, and this fencepost reads version "
                f"{VERSION}: a newer one has "
                "written it, so use that one"
            )
        sources = fields.get("sources")
        return LedgerEntry(
            query_id=str(fields["queryId"]),
            batch_id=int(fields["batchId"]),
            fingerprint=str(fields.get("fingerprint", "")),
            recent_ms=tuple(int(each) for each in fields.get("recentMs", ())),
            sources=None if sources is None else _read_offsets(sources),
            topic_ids={} if sources is None else _read_ids(sources),
            sources_committed=bool(fields.get("sourcesCommitted")),
            is_stateful=fields.get("stateful"),
            parts=_read_parts(fields.get("parts")),
            run_id=str(fields.get("runId", "")),
            is_short=bool(fields.get("short")),
            lost=fields.get("lost"),
            serial=int(fields.get("serial", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise EntryUnreadable(f"it is no entry of a ledger ({value[:80]!r})") from problem


def _read_parts(parts: Any) -> tuple[str, ...] | None:
    return None if parts is None else tuple(str(name) for name in parts)


def _read_offsets(sources: Mapping[str, Any]) -> Offsets:
    return from_layout({topic: told["offsets"] for topic, told in sources.items()})


def _read_ids(sources: Mapping[str, Any]) -> dict[str, str]:
    return {topic: str(told["id"]) for topic, told in sources.items() if told.get("id")}


def follow(before: LedgerEntry | None, entry: LedgerEntry, open_ms: int | None) -> LedgerEntry:
    """The entry as the successor of the one before it; `open_ms` is how long its transaction was open."""
    before = before or LedgerEntry("", -1)
    recent_ms = before.recent_ms if open_ms is None else before.recent_with(open_ms)
    return replace(entry, recent_ms=recent_ms, serial=before.serial + 1)


def note(
    entry: LedgerEntry | None, query_id: str, short: int | None, lost: int | None
) -> LedgerEntry | None:
    """The entry with what has gone wrong since; None when there is nothing to say, or nowhere to say it."""
    if entry is None:
        # A first batch that was lost: one before it is entered, so that there is an entry.
        before_first = LedgerEntry(query_id, -1, lost=lost)
        return None if lost is None else follow(None, before_first, None)
    if entry.query_id != query_id:
        return None
    if short is not None and entry.batch_id == short and not entry.is_short:
        return follow(entry, replace(entry, is_short=True), None)
    if lost is not None and entry.batch_id < lost and entry.lost is None:
        return follow(entry, replace(entry, lost=lost), None)
    return None


# The table.


def decide(page: Page, batch: Batch, permits: Permits = NO_PERMITS) -> Decision:
    """The table above."""
    entry, former = page.entry, page.former
    if page.place is not None and former is not None and former.entry is not None:
        return _decide_rival(former.entry, permits)
    if entry is None:
        return _decide_without_entry(former, batch, permits)
    if entry.query_id != batch.query_id:
        return _decide_other_query(entry, batch, permits)
    if entry.batch_id == batch.batch_id:
        return _decide_repetition(entry, batch, permits)
    if entry.batch_id < batch.batch_id:
        return _decide_later(entry, batch, permits)
    return Decision(
        Verdict.REFUSE,
        f"the topics hold batch {entry.batch_id} of this query as the last one, and the checkpoint "
        f"wants to write batch {batch.batch_id}: the checkpoint was restored from another time "
        "or edited. "
        "Restore the checkpoint that belongs to the topics, or start anew with an empty "
        "checkpoint and "
        "another transactional_id",
    )


def _decide_rival(former: LedgerEntry, permits: Permits) -> Decision:
    if permits.adopt:
        return Decision(Verdict.WRITE, "an older fencepost has written since; adopted")
    return Decision(
        Verdict.REFUSE,
        f"an older version of fencepost has written batch {former.batch_id} of query "
        f"{former.query_id} after the ledger "
        "had moved to its own topic, and its entry and the topic's disagree. Use one version "
        "for one transactional_id. "
        "Look at the end of the topics; if this batch is not there, pass adopt=True once",
    )


def _decide_without_entry(former: FormerLedger | None, batch: Batch, permits: Permits) -> Decision:
    if permits.adopt:
        return Decision(Verdict.WRITE, "no ledger, adopted")
    if former is not None:
        return Decision(
            Verdict.REFUSE,
            "the ledger of this transactional_id has moved to a topic of its own, but the topic "
            "has no record of it: the "
            "topic was deleted and made again, or ledger_topic= names another one. Whether the "
            "batch is in the topics "
            "cannot be known. Correct ledger_topic=; or look at the end of the topics, and if "
            "the batch is not there, "
            "pass adopt=True once",
        )
    if batch.batch_id == 0 or permits.may_skip:
        return Decision(Verdict.WRITE, "the first batch, and no ledger")
    return Decision(
        Verdict.REFUSE,
        f"batch {batch.batch_id} is not the first one, but the cluster has no ledger of this "
        "transactional_id: its record "
        "or its topic was deleted, ledger_topic= names another topic, or this is another "
        "cluster; or your function has not "
        "called the sink for any batch before. Whether the batch is in the topics cannot be "
        "known. Look at the end of the "
        "topics; if the batch is not there, pass adopt=True once. For batches without rows call "
        "sink.skip(batch_id), or "
        "pass may_skip=True",
    )


def _decide_repetition(entry: LedgerEntry, batch: Batch, permits: Permits) -> Decision:
    known = entry.fingerprint and batch.fingerprint
    if known and entry.fingerprint != batch.fingerprint:
        return Decision(
            Verdict.REFUSE,
            f"batch {batch.batch_id} is in the topics already, made from other source offsets "
            "than the checkpoint now "
            "has for it: the checkpoint has diverged (edited, or two queries use it). Restore "
            "the checkpoint that "
            "belongs to the topics, or start anew with an empty checkpoint and another "
            "transactional_id",
        )
    if batch.run_id and batch.run_id == entry.run_id:
        return Decision(
            Verdict.REFUSE,
            f"batch {batch.batch_id} was written in this run of the query already, by another "
            "sink with the same "
            "transactional_id: a batch has one call of one sink. Put all DataFrames of a batch "
            "into one call, "
            'sink.write({"topic": df, ...}, batch_id)',
        )
    written, wanted = entry.parts or (), batch.parts or ()
    missing = tuple(name for name in wanted if name not in written)
    is_known = entry.parts is not None and batch.parts is not None
    if not (entry.is_short or (is_known and missing)):
        return Decision(Verdict.DRAIN, f"batch {batch.batch_id} is in the topics already")
    if not permits.adopt:
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
            f"({written}): a second call for "
            "it was refused. Put all DataFrames of a batch into one call, "
            'sink.write({"topic": df, ...}, batch_id), and pass adopt=True once: it writes the '
            "DataFrames of the topics "
            "that the first call did not write to. If both calls wrote to one topic, write the "
            "rows that are missing "
            "there by other means first: adopt=True takes that topic as it is",
        )
    if set(entry.parts or ()) <= set(batch.parts or ()):
        remedy = "Pass adopt=True once, and the sink writes what is missing and goes on"
    else:
        remedy = (
            "Look at the topics; pass adopt=True once to take the batch as it is, with nothing "
            "more written, or go back to "
            "the code that wrote it"
        )
    return Decision(
        Verdict.REFUSE,
        f"batch {batch.batch_id} is in the topics already, but not all of it: it was written "
        f"with {written}, and this "
        f"call has {_names(missing)} as well. {remedy}",
    )


def _names(parts: tuple[str, ...]) -> str:
    return ", ".join(map(repr, parts)) or "no rows"


def _decide_later(entry: LedgerEntry, batch: Batch, permits: Permits) -> Decision:
    if permits.adopt:
        return Decision(Verdict.WRITE, f"batch {entry.batch_id} is the last one, adopted")
    if entry.is_short:
        return Decision(
            Verdict.REFUSE,
            f"batch {entry.batch_id} of this query lacks rows: a second call for it was "
            "refused, and the query went on. "
            "Write the rows that are missing by other means, or go back to a checkpoint from "
            "before that batch with "
            "another transactional_id; then pass adopt=True once",
        )
    if entry.batch_id == batch.batch_id - 1:
        return Decision(Verdict.WRITE, f"batch {entry.batch_id} is the last one in the topics")
    if entry.lost is not None and entry.batch_id < entry.lost < batch.batch_id:
        return Decision(
            Verdict.REFUSE,
            f"batch {entry.lost} of this query is not in the topics: the sink failed, and your "
            "function caught the "
            f"exception. {_how_to_repeat(entry)}; or pass adopt=True once to go on without its "
            "rows",
        )
    if permits.may_skip:
        return Decision(
            Verdict.WRITE, f"batch {entry.batch_id} is the last one, others were skipped"
        )
    return Decision(
        Verdict.REFUSE,
        f"the last batch of this query in the topics is {entry.batch_id}, and the checkpoint "
        "wants to write batch "
        f"{batch.batch_id}. Either your function did not call the sink for those between: if "
        "they had no rows, call "
        "sink.skip(batch_id) for such batches, or pass may_skip=True to the sink; adopt=True, "
        "once, gets over this gap. Or "
        "a call failed and your function caught the exception, or the cluster was restored from "
        "another time: then rows "
        f"are missing. {_how_to_repeat(entry)}",
    )


def _how_to_repeat(entry: LedgerEntry) -> str:
    return (
        f"To write them, restore a checkpoint whose last batch is {entry.batch_id}, or start "
        "with an empty checkpoint "
        f'where the output ends{_starting_offsets(entry)} and pass take_over="{entry.query_id}"'
    )


def _decide_other_query(entry: LedgerEntry, batch: Batch, permits: Permits) -> Decision:
    difference = find_difference(entry, batch)
    if permits.adopt:
        reason = f"adopted from query {entry.query_id}"
    elif permits.take_over is not None and permits.take_over != entry.query_id:
        return Decision(
            Verdict.REFUSE,
            f"take_over names query {permits.take_over}, but the transactional_id belongs to "
            f"query {entry.query_id} (last "
            f"batch {entry.batch_id}), and this is query {batch.query_id}. Look at `fencepost "
            "ledger show`, and name the "
            "query that this one continues",
        )
    elif difference is None or (permits.take_over is not None and difference.is_unknown):
        reason = f"continues where batch {entry.batch_id} of {entry.query_id} ended"
    elif permits.take_over is not None:
        return Decision(
            Verdict.REFUSE,
            f"take_over names query {entry.query_id}, but this query does not begin where batch "
            f"{entry.batch_id} of it "
            f"ended: {difference.words}. Start from there{_starting_offsets(entry)}, or pass "
            "adopt=True once if you know "
            "that no row is written twice",
        )
    else:
        return Decision(
            Verdict.REFUSE,
            f"the transactional_id belongs to query {entry.query_id} (last batch "
            f"{entry.batch_id}), and this is query "
            f"{batch.query_id}: either two queries use one id, or the checkpoint is new and "
            "would write again what is in "
            f"the topics ({difference.words}). Give this query its own transactional_id; or, "
            "after a lost checkpoint, "
            f"start from where the output ends{_starting_offsets(entry)} and pass "
            f'take_over="{entry.query_id}"; or pass adopt=True once if you know where it begins',
        )
    return _decide_state(entry, batch, permits, reason)


def _decide_state(entry: LedgerEntry, batch: Batch, permits: Permits, reason: str) -> Decision:
    """A new checkpoint has no state; one that has come further brings its own."""
    is_stateful = entry.is_stateful if batch.is_stateful is None else batch.is_stateful
    if is_stateful and batch.batch_id == 0 and not permits.allow_empty_state:
        return Decision(
            Verdict.REFUSE,
            "this query keeps state, and its checkpoint is new: it would go on from query "
            f"{entry.query_id} (last batch "
            f"{entry.batch_id}) with empty state, and its counts, windows or duplicates would "
            "be wrong. Restore the "
            "checkpoint; or read the source from its beginning into other topics with another "
            "transactional_id; or pass "
            "allow_empty_state=True once if empty state is right",
        )
    return Decision(Verdict.TAKE_OVER, reason)


def _starting_offsets(entry: LedgerEntry) -> str:
    if not entry.sources:
        return ""
    return f" (startingOffsets='{starting_offsets(entry)}')"


def starting_offsets(entry: LedgerEntry) -> str:
    """The option of the source with which a query continues where the entry's batch ended."""
    return json.dumps(to_layout(entry.sources or {}), separators=(",", ":"))


class Difference(NamedTuple):
    """Why a batch does not provably begin where an entry ends."""

    words: str
    is_unknown: bool = False
    """Whether we could not compare, so that nothing is proven either way."""


def find_difference(entry: LedgerEntry, batch: Batch) -> Difference | None:
    """None when the batch begins exactly where the sources of the entry end."""
    if not entry.sources:
        return Difference("the entry does not say where its sources ended", is_unknown=True)
    if not batch.start:
        return Difference("where this query begins is not known", is_unknown=True)
    return _find_other_topic(entry, batch) or _find_other_offset(entry.sources, batch)


def _find_other_topic(entry: LedgerEntry, batch: Batch) -> Difference | None:
    for topic in sorted({tp.topic for tp in entry.sources or ()}):
        then, now = entry.topic_ids.get(topic), batch.topic_ids.get(topic)
        if then is None or now is None:
            words = f"whether topic {topic!r} is still the same one is not known"
            return Difference(words, is_unknown=True)
        if then != now:
            return Difference(f"topic {topic!r} was deleted and created again since")
    return None


def _find_other_offset(ended: Offsets, batch: Batch) -> Difference | None:
    start = batch.start or {}
    for tp in sorted(ended.keys() | start.keys()):
        if tp not in start:
            return Difference(f"it does not read {tp}")
        # What is new since the entry was not read by it.
        due = ended.get(tp, batch.beginnings.get(tp, 0))
        if start[tp] != due:
            return Difference(f"{tp} ended at {due} and would begin at {start[tp]}")
    return None
