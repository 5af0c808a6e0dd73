"""The calls of the sink within one run of a query: one call per batch, with all of its rows.

Spark calls the user's function once per batch, in order. The function may call the sink in any way,
and the ledger cannot tell a second call from a repeated batch, or a caught failure from a skipped
batch. So this process records the calls of each run:

    so far in this run       a call for batch b                  sink.skip(b)
    nothing                  the ledger decides                  the ledger decides
    batch l < b finished     write: those between had no rows    record: the same
    batch b finished         refuse: the batch is committed      nothing to do
    batch l > b finished     refuse: it is too late              refuse
    batch b failed           repeat, with the same DataFrames    the ledger decides
    an earlier one failed    refuse: its rows would be lost      refuse
    a skip failed            as if it had not been called        the same
    another call is active   refuse, and abort that one          the same

A refused call is a failure too: if the function catches it, later calls are refused. What must
survive a restart (a batch without the rows of its second call, a lost batch) also goes into the
ledger. The record belongs to the process, not to the sink, so it covers copies of the sink and
other sinks with the same transactional id.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.spark.failures import SinkFenced, SinkRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

RUNS_KEPT: Final = 64
"""How many runs of all queries are kept. For a run that was dropped, the ledger decides again."""

HOW_TO_WRITE_SEVERAL: Final = (
    'put all DataFrames of a batch into one call, sink.write({"topic": df, ...}, batch_id)'
)


class Call(NamedTuple):
    """One call of the sink."""

    batch_id: int
    frames: tuple[Any, ...] = ()
    """The DataFrames to write; none for a skip."""

    @property
    def is_skip(self) -> bool:
        """Whether the call writes nothing."""
        return not self.frames


@dataclass(slots=True)
class _Failure:
    call: Call
    words: str
    may_repeat: bool
    problem: BaseException | None = None


class Damage(NamedTuple):
    """The effect of a refused call, for the ledger, so that it survives a restart."""

    short: int | None = None
    """A committed batch that lacks the rows of its second call."""
    lost: int | None = None
    """A batch that is not committed, although Spark went on."""


@dataclass(slots=True)
class RunCalls:
    """The calls of one run."""

    last: int | None = None
    """The last finished batch of this run."""
    failure: _Failure | None = None
    is_again: bool = False
    """Whether the active call repeats a failed one, which may have been committed."""
    damage: Damage | None = None
    how_to_write_several: str = HOW_TO_WRITE_SEVERAL
    """What a second call for a batch is told to do instead."""
    _under_way: Call | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, call: Call) -> bool:
        """Begins a call; SinkRefused where the table above says so.

        False if the batch is finished: there is nothing to skip, and the call is over.
        """
        with self._lock:
            refusal = self._refusal(call)
            if refusal is not None:
                if self.failure is None or self.failure.may_repeat:
                    self.failure = _Failure(call, refusal, may_repeat=False)
                raise SinkRefused(refusal)
            if call.batch_id == self.last:
                return False
            self.is_again = self.failure is not None
            self._under_way, self.failure = call, None
        return True

    def pop_damage(self) -> Damage | None:
        """Returns what the ledger must record, once."""
        with self._lock:
            damage, self.damage = self.damage, None
            return damage

    def finish(self, call: Call) -> None:
        """Ends a call whose batch is committed."""
        with self._lock:
            self._under_way = None
            self.last = call.batch_id
            if self.failure is not None:
                # Another call was refused while this one was being committed.
                self.damage = Damage(short=call.batch_id)

    def fail(self, call: Call, problem: BaseException) -> None:
        """Ends a call that raised."""
        with self._lock:
            self._under_way = None
            if self.failure is None:
                words = (str(problem).splitlines() or [type(problem).__name__])[0][:300]
                self.failure = _Failure(call, words, may_repeat=True, problem=problem)

    def check(self) -> None:
        """Raises SinkRefused before a commit if another call came in between."""
        with self._lock:
            if self.failure is not None:
                assert self._under_way is not None
                raise SinkRefused(
                    f"batch {self._under_way.batch_id} was given up, because another call came "
                    f"while it was written: {self.failure.words}"
                )

    def _refusal(self, call: Call) -> str | None:
        batch_id, failure = call.batch_id, self.failure
        if self._under_way is not None:
            return (
                f"the sink was called for batch {batch_id} while another thread was writing batch "
                f"{self._under_way.batch_id}. Call it once per batch: {self.how_to_write_several}. "
                "Nothing of this call was written"
            )
        if failure is not None:
            return self._refusal_after(failure, call)
        if self.last is None or batch_id > self.last:
            return None
        if batch_id < self.last:
            return (
                f"the sink was called for batch {batch_id}, but this run of the query has already "
                f"finished batch {self.last}: pass the batch id that Spark passes to your "
                "function. Nothing of this call was written"
            )
        if call.is_skip:
            return None
        self.damage = Damage(short=batch_id)
        return (
            f"the sink was called a second time for batch {batch_id}. The first call is committed, "
            "so the batch holds only the first call's rows. The rows of this call were not "
            f"written. To write several DataFrames, {self.how_to_write_several}"
        )

    def _refusal_after(self, failure: _Failure, call: Call) -> str | None:
        failed = failure.call.batch_id
        if failure.may_repeat and failure.call.is_skip and call.batch_id >= failed:
            return None  # No rows, so none are lost.
        if call.batch_id == failed and failure.may_repeat:
            if call.is_skip or _are_same(failure.call.frames, call.frames):
                return None
            return (
                f"the call for batch {failed} failed ({failure.words}), and this call has other "
                "rows for the same batch: committing it would lose the rows of the failed call. "
                "Repeat the same call, or let the exception stop the query. Nothing of this call "
                "was written"
            )
        if not failure.may_repeat:
            return (
                "an earlier call of the sink in this run was refused, and the query went on: "
                f"{failure.words}. Do not catch the sink's exceptions: let them stop the query, "
                "and start it again. Nothing of this call was written"
            )
        # A fenced query must leave the ledger to the new owner of the id.
        if not isinstance(failure.problem, SinkFenced):
            self.damage = Damage(lost=failed)
        return (
            f"the sink failed in batch {failed} ({failure.words}), but the query went on to batch "
            f"{call.batch_id}: the rows of batch {failed} are missing. Do not catch the sink's "
            "exceptions: let them stop the query, and start it again. Nothing of this call was "
            "written"
        )


def _are_same(frames: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    try:
        return len(frames) == len(others) and all(
            one is other or one.sameSemantics(other)
            for one, other in zip(frames, others, strict=True)
        )
    except Exception as problem:  # noqa: BLE001 - not a DataFrame, or its session is closed.
        log.debug("cannot compare the rows of two calls: %s", problem)
        return False


_runs: Final[OrderedDict[tuple[str, ...], RunCalls]] = OrderedDict()
_runs_lock: Final = threading.Lock()


def calls_of(
    sink_id: str,
    servers: Iterable[object],
    run: tuple[str, str],
    how_to_write_several: str = HOW_TO_WRITE_SEVERAL,
) -> RunCalls:
    """The calls of one run of a query with one sink: its transactional id, or its id elsewhere."""
    key = (sink_id, ",".join(sorted(map(str, servers))), *run)
    with _runs_lock:
        found = _runs.get(key)
        if found is None:
            others = {other[0] for other in _runs if other[2:] == run} - {sink_id}
            if others:
                log.warning(
                    "query %s uses two sinks (%s, %s) and so two transactions: after a crash one "
                    "may have a batch and the other not, until the query is started again. For "
                    "topics of one cluster, sink.write puts several DataFrames into one",
                    run[0],
                    sink_id,
                    min(others),
                )
            found = _runs[key] = RunCalls(how_to_write_several=how_to_write_several)
            while len(_runs) > RUNS_KEPT:
                _runs.popitem(last=False)
        _runs.move_to_end(key)
        return found
