"""What to do with a batch, given the last entry of its transactional id.

Theory of operation. Every transaction of the sink also writes one record to a compacted topic
(`topic.py`): the key is the transactional id, the value a `LedgerEntry`. So after any crash the
question "is batch 7 in Kafka?" has one answer, and Kafka gives it, regardless of Spark's
checkpoint.

Spark repeats the newest batch whose end it has not logged, with the same id and the same source
offsets, and never an older one. A batch write with txnAppId and txnVersion uses the same table:
they are what the query id and the batch id are to a stream. `classify` names the case, `RULE` has
the verdict, and the sentences of refusals stand at the end. Nothing here knows where the entry is
stored, so another store can use all of it with its own sentences. The first row that fits decides:

    ledger            batch b of query q                       alone      with adopt  case
    no entry          b is 0, a version, or may_skip           write      write       FIRST
                      any other                                refuse     write       NO_LEDGER
    q, an earlier     a version                                write      write       NEXT
      batch           b does not begin where that one ended    refuse     refuse      OTHER_POSITION
                      the recorded batch is short              refuse     write       LAST_IS_SHORT
                      the recorded batch is b - 1              write      write       NEXT
                      a batch in between is known to be lost   refuse     write       LOST
                      may_skip                                 write      write       SKIPPED
                      any other                                refuse     write       GAP
    q, b              a version                                drain      drain       COMMITTED
                      other source offsets                     refuse     refuse      OTHER_OFFSETS
                      written in this very run                 refuse     refuse      SECOND_SINK
                      recorded as short, has more parts        refuse     complete    SHORT_PARTS
                      recorded as short                        refuse     drain       SHORT
                      has more parts than recorded             refuse     complete    PARTS_MISSING
                      has other parts than recorded            refuse     drain       PARTS_DIFFER
                      any other                                drain      drain       COMMITTED
    q, a later batch  a version                                refuse     write       OLDER_VERSION
                      any other                                refuse     refuse      OLDER_BATCH
    another query p   would take over, but without its state   refuse     refuse      EMPTY_STATE
                      take_over names a third query            refuse     take over   WRONG_OWNER
                      begins where p ended                     take over  take over   CONTINUES
                      take_over names p, whose sources have    take over  take over   CONTINUES
                        no offsets in the entry
                      take_over names p, begins elsewhere or   refuse     take over   OTHER_START
                        it is not known where
                      any other                                refuse     take over   OTHER_QUERY

An entry is short if a second call for its batch was refused, so that call's rows are missing.

Spark begins a batch where the one before it ended, so the first batch of a run must begin where the
entry ends: ids that fit prove nothing, because a checkpoint can be edited, or restored and
continued without the sink. Offsets of topics are compared by partition, also over a gap, where they
may only have grown. Of other sources, the fingerprints are compared if the ids are consecutive.
Later batches of a run need no comparison (`Transaction.last_is`).

`take_over` does not override source offsets that contradict the start of the batch: the entry's
offsets were written in the same transaction as the rows, so they are exact. The offsets of the
consumer group are not consulted, because a run with commit_source_offsets=False leaves them behind.
A partition that is new since the entry must be read from its beginning, and topic ids must match,
or the offsets of two different topics would be compared. A stateful query that takes over with a
new checkpoint has lost its state, so it is refused unless `allow_empty_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from fencepost.spark.ledger.entry import LedgerEntry, Offsets, starting_offsets
from fencepost.spark.offsets import SourceOffsets


class Verdict(Enum):
    """What to do with a batch."""

    WRITE = "write"
    DRAIN = "drain"
    """Run the plan for the query's state, but write nothing."""
    TAKE_OVER = "take over"
    """Write, as the successor of another query."""
    COMPLETE = "complete"
    """Write the missing parts of a committed batch."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Batch:
    """The facts about a batch that are compared with the ledger."""

    query_id: str
    """Or the txnAppId."""
    batch_id: int
    """Or the txnVersion."""
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
    """The run of the query that called the sink."""
    is_again: bool = False
    """Whether this run repeats its own call, which may have been committed."""
    is_version: bool = False
    """Whether it is a batch write. Its versions may have gaps, and it keeps no state."""
    ended: SourceOffsets | None = None
    """The end offsets of its sources, for the entry; None if unknown or if some is not a topic."""
    begun: str = ""
    """The fingerprint of its start offsets; empty if unknown, and in the first batch."""
    find_start: Callable[[], Offsets | None] | None = field(default=None, compare=False)
    """Finds `start` for a first batch that has it in a file only. Costs a job of Spark."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The sink's arguments that allow what the ledger would refuse."""

    adopt: bool = False
    take_over: str | None = None
    allow_empty_state: bool = False
    may_skip: bool = False


NO_OVERRIDES: Final = Overrides()


# The table.


class Case(Enum):
    """How a batch relates to the ledger. The value is a phrase for the log."""

    FIRST = "the first batch, and no ledger"
    """Nothing is recorded, and this batch may be the first one."""
    NO_LEDGER = "no ledger"
    """Nothing is recorded, but earlier batches must have been written: the ledger was lost."""
    NEXT = "batch {entry.batch_id} is the last one in the topics"
    """The batch after the recorded one, or any later version."""
    OTHER_POSITION = "batch {entry.batch_id} is the last one and ended elsewhere"
    """A later batch that begins elsewhere: the checkpoint was changed under the query."""
    LOST = "batch {entry.batch_id} is the last one, batch {entry.lost} was lost"
    """The sink failed for a batch in between, and the user's function caught the exception."""
    SKIPPED = "batch {entry.batch_id} is the last one, others were skipped"
    """Batches in between are not recorded, and `may_skip` says that they had no rows."""
    GAP = "batch {entry.batch_id} is the last one"
    """The same without `may_skip`: rows may be missing."""
    LAST_IS_SHORT = "batch {entry.batch_id} is the last one and lacks rows"
    """A later batch, but the recorded one lacks the rows of a second call."""
    COMMITTED = "batch {batch.batch_id} is already in the topics"
    """The recorded batch again: Spark repeats it after a crash."""
    OTHER_OFFSETS = "batch {batch.batch_id} is in the topics with other source offsets"
    """The recorded batch with other rows: the checkpoint was changed under the query."""
    SECOND_SINK = "batch {batch.batch_id} was written in this run"
    """The recorded batch in the run that wrote it. Spark does not repeat it there."""
    PARTS_MISSING = "{missing} were missing"
    """The recorded batch, with topics that the entry does not have."""
    PARTS_DIFFER = "batch {batch.batch_id} is in the topics with other parts"
    """The same, and it lacks topics of the entry: what is missing cannot be told."""
    SHORT_PARTS = "{missing} were missing after a second call"
    """The recorded batch is short, and this call has topics that the entry does not have."""
    SHORT = "batch {batch.batch_id} is in the topics without the rows of a second call"
    """The recorded batch is short, and which rows are missing cannot be told."""
    OLDER_BATCH = "batch {entry.batch_id} is in the topics"
    """A batch before the recorded one: the checkpoint is older than the topics."""
    OLDER_VERSION = "version {entry.batch_id} is in the topics"
    """A version below the recorded one. Delta would skip it, and hide a mistake."""
    CONTINUES = "continues where batch {entry.batch_id} of {entry.query_id} ended"
    """Another query's entry, and this query is its successor."""
    OTHER_START = "query {entry.query_id} ended elsewhere"
    """`take_over` names the owner, but the source offsets contradict it."""
    WRONG_OWNER = "query {entry.query_id} owns the id, not {overrides.take_over}"
    """`take_over` names a query that is not the owner."""
    OTHER_QUERY = "query {entry.query_id} owns the id"
    """Another query's entry, and nothing shows that this query continues it."""
    EMPTY_STATE = "the state of query {entry.query_id} is lost"
    """It would take over, but a new checkpoint has none of the state that the query keeps."""


class Row(NamedTuple):
    """The verdict of a case."""

    alone: Verdict
    adopted: Verdict
    """With `adopt`."""

    def verdict(self, overrides: Overrides) -> Verdict:
        """The one that applies."""
        return self.adopted if overrides.adopt else self.alone


RULE: Final[Mapping[Case, Row]] = {
    Case.FIRST: Row(Verdict.WRITE, Verdict.WRITE),
    Case.NO_LEDGER: Row(Verdict.REFUSE, Verdict.WRITE),
    Case.NEXT: Row(Verdict.WRITE, Verdict.WRITE),
    Case.OTHER_POSITION: Row(Verdict.REFUSE, Verdict.REFUSE),
    Case.LOST: Row(Verdict.REFUSE, Verdict.WRITE),
    Case.SKIPPED: Row(Verdict.WRITE, Verdict.WRITE),
    Case.GAP: Row(Verdict.REFUSE, Verdict.WRITE),
    Case.LAST_IS_SHORT: Row(Verdict.REFUSE, Verdict.WRITE),
    Case.COMMITTED: Row(Verdict.DRAIN, Verdict.DRAIN),
    Case.OTHER_OFFSETS: Row(Verdict.REFUSE, Verdict.REFUSE),
    Case.SECOND_SINK: Row(Verdict.REFUSE, Verdict.REFUSE),
    Case.PARTS_MISSING: Row(Verdict.REFUSE, Verdict.COMPLETE),
    Case.PARTS_DIFFER: Row(Verdict.REFUSE, Verdict.DRAIN),
    Case.SHORT_PARTS: Row(Verdict.REFUSE, Verdict.COMPLETE),
    Case.SHORT: Row(Verdict.REFUSE, Verdict.DRAIN),
    Case.OLDER_BATCH: Row(Verdict.REFUSE, Verdict.REFUSE),
    Case.OLDER_VERSION: Row(Verdict.REFUSE, Verdict.WRITE),
    Case.CONTINUES: Row(Verdict.TAKE_OVER, Verdict.TAKE_OVER),
    Case.OTHER_START: Row(Verdict.REFUSE, Verdict.TAKE_OVER),
    Case.WRONG_OWNER: Row(Verdict.REFUSE, Verdict.TAKE_OVER),
    Case.OTHER_QUERY: Row(Verdict.REFUSE, Verdict.TAKE_OVER),
    Case.EMPTY_STATE: Row(Verdict.REFUSE, Verdict.REFUSE),
}


def classify(entry: LedgerEntry | None, batch: Batch, overrides: Overrides = NO_OVERRIDES) -> Case:
    """Compares the batch with the last entry."""
    if entry is None:
        may_begin = batch.batch_id == 0 or batch.is_version or overrides.may_skip
        return Case.FIRST if may_begin else Case.NO_LEDGER
    if entry.query_id != batch.query_id:
        return _classify_other_query(entry, batch, overrides)
    if entry.batch_id > batch.batch_id:
        return Case.OLDER_VERSION if batch.is_version else Case.OLDER_BATCH
    if batch.is_version:
        return Case.COMMITTED if entry.batch_id == batch.batch_id else Case.NEXT
    if entry.batch_id == batch.batch_id:
        return _classify_repetition(entry, batch)
    return _classify_later(entry, batch, overrides)


def _classify_later(entry: LedgerEntry, batch: Batch, overrides: Overrides) -> Case:
    if find_contradiction(entry, batch) is not None:
        return Case.OTHER_POSITION
    if entry.is_short:
        return Case.LAST_IS_SHORT
    if entry.batch_id == batch.batch_id - 1:
        return Case.NEXT
    if entry.lost is not None and entry.batch_id < entry.lost < batch.batch_id:
        return Case.LOST
    return Case.SKIPPED if overrides.may_skip else Case.GAP


def _classify_repetition(entry: LedgerEntry, batch: Batch) -> Case:
    if entry.fingerprint and batch.fingerprint and entry.fingerprint != batch.fingerprint:
        return Case.OTHER_OFFSETS
    if batch.run_id and batch.run_id == entry.run_id and not batch.is_again:
        return Case.SECOND_SINK
    missing = missing_parts(entry, batch)
    is_completable = missing and set(entry.parts or ()) <= set(batch.parts or ())
    if entry.is_short:
        return Case.SHORT_PARTS if is_completable else Case.SHORT
    if missing and entry.parts is not None:
        return Case.PARTS_MISSING if is_completable else Case.PARTS_DIFFER
    return Case.COMMITTED


def _classify_other_query(entry: LedgerEntry, batch: Batch, overrides: Overrides) -> Case:
    difference, named = find_difference(entry, batch), overrides.take_over
    if named is not None and named != entry.query_id:
        case = Case.WRONG_OWNER
    elif difference is None or (named is not None and difference.is_unknown):
        case = Case.CONTINUES
    else:
        case = Case.OTHER_QUERY if named is None else Case.OTHER_START
    # A new checkpoint has no state. A checkpoint past batch 0 brings its own.
    is_stateful = entry.is_stateful if batch.is_stateful is None else batch.is_stateful
    is_lost = is_stateful and batch.batch_id == 0 and not batch.is_version
    takes_over = RULE[case].verdict(overrides) is Verdict.TAKE_OVER
    return Case.EMPTY_STATE if takes_over and is_lost and not overrides.allow_empty_state else case


def missing_parts(entry: LedgerEntry, batch: Batch) -> tuple[str, ...]:
    """The parts of the batch that the entry does not have."""
    return tuple(name for name in batch.parts or () if name not in (entry.parts or ()))


class Difference(NamedTuple):
    """Why a batch does not provably begin where an entry ends."""

    words: str
    is_unknown: bool = False
    """Whether the entry has nothing to compare, so that the user's word must do."""


def with_start(entry: LedgerEntry | None, batch: Batch) -> Batch:
    """The batch with its start offsets, if they will be compared and can be found."""
    is_compared = entry is not None and entry.sources and entry.query_id != batch.query_id
    if not is_compared or batch.start is not None or batch.find_start is None:
        return batch
    return replace(batch, start=batch.find_start())


def find_contradiction(entry: LedgerEntry, batch: Batch) -> Difference | None:
    """Why a later batch of the same query cannot follow the entry; None if it may."""
    is_next = entry.batch_id == batch.batch_id - 1
    if entry.sources and batch.start:
        return _find_moved_offset(entry, batch, is_next=is_next)
    if is_next and entry.fingerprint and batch.begun and entry.fingerprint != batch.begun:
        return Difference("the offsets of its sources are others")
    return None


def _find_moved_offset(entry: LedgerEntry, batch: Batch, *, is_next: bool) -> Difference | None:
    start = batch.start or {}
    for tp, ended in sorted((entry.sources or {}).items()):
        begins = start.get(tp)
        if is_next and begins is None:
            return Difference(f"it does not read {tp}")
        if begins is None or begins == ended:
            continue
        # Batches in between may have read more, or the same name again in a new topic.
        ids = {entry.topic_ids.get(tp.topic), batch.topic_ids.get(tp.topic)} - {None}
        if is_next or (begins < ended and len(ids) < 2):
            return Difference(f"{tp} ended at {ended} and would begin at {begins}")
    return None


def find_difference(entry: LedgerEntry, batch: Batch) -> Difference | None:
    """None if the first batch of another query begins where the sources of the entry end."""
    if not entry.sources:
        return Difference("the entry does not say where its sources ended", is_unknown=True)
    if batch.is_version:
        return Difference("a batch write does not say where it begins", is_unknown=True)
    if not batch.start:
        return Difference("it is not known where this query begins")
    topic = _find_other_topic(entry, batch)
    if topic is not None and not topic.is_unknown:
        return topic
    return _find_other_offset(entry.sources, batch) or topic


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


# The sentences.

# Each advice must be safe for everybody who may see the sentence: following it neither loses nor
# repeats a row. An argument that skips a comparison comes after the check that the user must make
# instead (`tests/test_advice.py`).

_ONE_CALL: Final = 'sink.write({{"topic": df, ...}}, batch_id)'
_SHORT: Final = (
    "batch {batch.batch_id} is in the topics with the rows of its first call only ({written}): a "
    f"second call for it was refused. Put all DataFrames of a batch into one call, {_ONE_CALL}. If "
    "both calls wrote to the same topic, write its missing rows by other means. Only then pass "
    "adopt=True once: the sink writes the DataFrames of the topics that the first call did not "
    "write to, and accepts the others as they are"
)
_INCOMPLETE: Final = (
    "batch {batch.batch_id} is already in the topics, but not all of it: it was written with "
    "{written}, and this call also has {missing}. "
)
_MATCHING: Final = "Restore the checkpoint that matches the topics, or {restart}"

STREAM_SENTENCES: Final[Mapping[Case, str]] = {
    Case.NO_LEDGER: "batch {batch.batch_id} is not the first one, but the cluster has no ledger of "
    "this transactional_id: the id was changed, its record or its topic was deleted, ledger_topic= "
    "names another topic, this is another cluster, or your function has not called the sink for "
    "any earlier batch. The sink cannot tell whether the batch is in the topics. If the id or "
    "ledger_topic= was changed, go back to the former one. Otherwise check the end of the topics; "
    "only if the batch is not there, pass adopt=True once",
    Case.OTHER_POSITION: "batch {batch.batch_id} does not begin where batch {entry.batch_id}, the "
    "last one in the topics, ended: {difference}. The checkpoint was edited, or restored and "
    f"continued without the sink, and rows would be missing or written twice. {_MATCHING}",
    Case.LOST: "batch {entry.lost} of this query is not in the topics: the sink failed, and your "
    "function caught the exception. To write its rows, restore a checkpoint whose last batch is "
    "{entry.batch_id}, or {restart}",
    Case.GAP: "the last batch of this query in the topics is {entry.batch_id}, and the checkpoint "
    "continues with batch {batch.batch_id}. If a call failed and your function caught the "
    "exception, or the cluster was restored from a backup, rows are missing: restore a checkpoint "
    "whose last batch is {entry.batch_id}, or {restart}. Only if your function did not call the "
    "sink for the batches in between because they had no rows, pass may_skip=True to the sink; "
    "sink.skip(batch_id), called for such batches, makes it unnecessary",
    Case.LAST_IS_SHORT: "batch {entry.batch_id} of this query lacks rows: a second call for it was "
    "refused, and the query went on. Write the missing rows by other means, and only then "
    "pass adopt=True once",
    Case.OTHER_OFFSETS: "batch {batch.batch_id} is already in the topics, but with other source "
    "offsets than the checkpoint has for it: the checkpoint was edited, or two queries use it. "
    f"Stop the other query if there is one. {_MATCHING}",
    Case.SECOND_SINK: "batch {batch.batch_id} was already written in this run of the query by "
    "another sink with the same transactional_id: call one sink once per batch. Put all DataFrames "
    f"of a batch into one call, {_ONE_CALL}",
    Case.PARTS_MISSING: _INCOMPLETE
    + "Pass adopt=True once: the sink writes what is missing and continues",
    Case.PARTS_DIFFER: _INCOMPLETE + "Go back to the code that wrote it. Only if no row of the "
    "batch is missing in the topics, pass adopt=True once: the sink accepts the batch as it is",
    Case.SHORT_PARTS: _SHORT,
    Case.SHORT: _SHORT,
    Case.OLDER_BATCH: "the last batch of this query in the topics is {entry.batch_id}, which is "
    "newer than batch {batch.batch_id} of the checkpoint: the checkpoint was restored from a "
    f"backup or edited. {_MATCHING}",
    Case.OTHER_START: "take_over names query {entry.query_id}, but this query does not begin where "
    "its batch {entry.batch_id} ended: {difference}. With an empty checkpoint, start from "
    "there{start}. Only if you have compared where it begins with the end of the topics, and no "
    "row is between them or in both, pass adopt=True once",
    Case.WRONG_OWNER: "take_over names query {overrides.take_over}, but the transactional_id "
    "belongs to query {entry.query_id} (last batch {entry.batch_id}), and this is query "
    "{batch.query_id}. Run `fencepost ledger show`, and name the query that this one continues; "
    "if it continues none, give it its own transactional_id",
    Case.OTHER_QUERY: "the transactional_id belongs to query {entry.query_id} (last batch "
    "{entry.batch_id}), and this is query {batch.query_id}: either two queries use one id, or the "
    "checkpoint is new and would write rows again that are in the topics ({difference}). Without "
    "the option checkpointLocation it is new at every start. If two queries use the id, give each "
    "its own. If the checkpoint is new, keep the id: restore the former checkpoint, or {restart}",
    Case.EMPTY_STATE: "this query keeps state, and its checkpoint is new: it would continue query "
    "{entry.query_id} (last batch {entry.batch_id}) with empty state, and its counts, windows or "
    "deduplication would be wrong. Restore the checkpoint; or read the source from its beginning "
    "into other topics with another transactional_id. Only if empty state is right, pass "
    "allow_empty_state=True once",
}

_OTHER_APPLICATION: Final = (
    "it belongs to {entry.query_id!r} (last batch or version {entry.batch_id}), and this is "
    "txnAppId {batch.query_id!r}. Leave transactionalId out, or give this write its own; only if "
    "it continues the other one with rows that are not in the topics, pass "
    'takeOver="{entry.query_id}" once'
)

VERSION_SENTENCES: Final[Mapping[Case, str]] = {
    Case.OLDER_VERSION: "the last version of {batch.query_id!r} in the topics is {entry.batch_id}, "
    "and this write is version {batch.batch_id}: it was written before, or is out of order. If its "
    "rows are in the topics, leave it out; only if they are not, pass adopt=true once. Give every "
    "new write a higher txnVersion than the one before",
    Case.WRONG_OWNER: _OTHER_APPLICATION,
    Case.OTHER_QUERY: _OTHER_APPLICATION,
}


class Decision(NamedTuple):
    """The verdict and the reason, for the user."""

    verdict: Verdict
    reason: str
    missing: tuple[str, ...] = ()
    """The parts to write if the verdict is COMPLETE."""


def decide(
    entry: LedgerEntry | None,
    batch: Batch,
    overrides: Overrides = NO_OVERRIDES,
    sentences: Mapping[Case, str] = STREAM_SENTENCES,
) -> Decision:
    """Applies the table."""
    batch = with_start(entry, batch)
    case = classify(entry, batch, overrides)
    verdict = RULE[case].verdict(overrides)
    is_refused = verdict is Verdict.REFUSE
    last = entry or LedgerEntry("", -1)
    reason = _fill_in(sentences[case] if is_refused else case.value, last, batch, overrides)
    if verdict is not RULE[case].alone:
        reason += ", adopted"
    missing = missing_parts(last, batch) if verdict is Verdict.COMPLETE else ()
    return Decision(verdict, reason, missing)


def _fill_in(sentence: str, entry: LedgerEntry, batch: Batch, overrides: Overrides) -> str:
    compare = find_contradiction if entry.query_id == batch.query_id else find_difference
    difference = compare(entry, batch)
    start = f" (startingOffsets='{starting_offsets(entry)}')" if entry.sources else ""
    where = f"where the output ends{start}" if start else "at the first row after the output"
    return sentence.format(
        entry=entry,
        batch=batch,
        overrides=overrides,
        difference=difference.words if difference else "",
        start=start,
        restart=f'start with an empty checkpoint {where} and pass take_over="{entry.query_id}"',
        written=_names(entry.parts or ()),
        missing=_names(missing_parts(entry, batch)),
    )


def _names(parts: tuple[str, ...]) -> str:
    return ", ".join(map(repr, parts)) or "no rows"
