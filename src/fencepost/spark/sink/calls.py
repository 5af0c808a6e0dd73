"""The calls of the sink within one run of a query: one call per batch, which holds all of its rows.

Spark calls the user's function once per batch, in order. What the function does with the sink is
its own affair, and the ledger cannot tell a second call from a repeated batch, or a failure that
was swallowed from a batch that was skipped. So this process keeps a book of the calls of each run:

    so far in this run       a call for batch b                        sink.skip(b)
    nothing                  the ledger decides                        the ledger decides
    batch l < b finished     write: those between had no rows          enter: the same
    batch b finished         refuse: the batch is committed            nothing to do
    batch l > b finished     refuse: its time is over                  refuse
    batch b failed           again, with the same DataFrames           the ledger decides
    an earlier one failed    refuse: its rows would be lost            refuse
    a skip failed            as if it had not been called              the same
    another call under way   refuse, and that one gives up as well     refuse, and so on

A call that was refused is a failure too: whoever swallows it is refused from then on. What a
restart must not forget (a batch that lacks the rows of its second call, a batch that was lost) goes
into the ledger as well. The book is the process's and not the sink's, so a copy of the sink or a
second one with the same transactional id is no way around it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.spark.failures import SinkFenced, SinkRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

RUNS_KEPT: Final = 64
"""Runs of all queries that the book remembers. One that is forgotten is asked of the ledger
again."""

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
        return not self.frames


class Known(Enum):
    """What this run knows of a batch before the ledger is asked."""

    NOTHING = "nothing"
    NEXT = "a later one than the last"
    FINISHED = "finished"


@dataclass(slots=True)
class _Failure:
    call: Call
    words: str
    may_repeat: bool
    problem: BaseException | None = None


class Damage(NamedTuple):
    """What the ledger should know of a refused call, so that a restart does not forget it."""

    short: int | None = None
    """A batch that is in the topics without the rows of its second call."""
    lost: int | None = None
    """A batch that is not in the topics, while Spark believes it is."""


@dataclass(slots=True)
class RunCalls:
    """The calls of one run."""

    last: int | None = None
    """The last batch that this run has finished."""
    failure: _Failure | None = None
    is_again: bool = False
    """Whether the call under way repeats one that failed: what it did may be in the topics."""
    damage: Damage | None = None
    _under_way: Call | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, call: Call) -> Known:
        """SinkRefused when the table above says so."""
        with self._lock:
            refusal = self._refusal(call)
            if refusal is not None:
                if self.failure is None or self.failure.may_repeat:
                    self.failure = _Failure(call, refusal, may_repeat=False)
                raise SinkRefused(refusal)
            if call.batch_id == self.last:
                return Known.FINISHED
            self.is_again = self.failure is not None
            self._under_way, self.failure = call, None
        return Known.NOTHING if self.last is None else Known.NEXT

    def take_damage(self) -> Damage | None:
        """What is to be written into the ledger; once."""
        with self._lock:
            damage, self.damage = self.damage, None
            return damage

    def finish(self, call: Call) -> None:
        """The batch is in the topics."""
        with self._lock:
            self._under_way = None
            self.last = call.batch_id
            if self.failure is not None:
                # Another call was refused while this one was being committed.
                self.damage = Damage(short=call.batch_id)

    def fail(self, call: Call, problem: BaseException) -> None:
        """It is not, as far as the caller will hear."""
        with self._lock:
            self._under_way = None
            if self.failure is None:
                words = (str(problem).splitlines() or [type(problem).__name__])[0][:300]
                self.failure = _Failure(call, words, may_repeat=True, problem=problem)

    def check(self) -> None:
        """For the call under way, before it commits: SinkRefused when another one has come meanwhile."""
        with self._lock:
            if self.failure is not None:
                assert self._under_way is not None
                raise SinkRefused(
                    f"batch {self._under_way.batch_id} was given up, because another call came "
                    "while it was written: "
                    f"{self.failure.words}"
                )

    def _refusal(self, call: Call) -> str | None:
        batch_id, failure = call.batch_id, self.failure
        if self._under_way is not None:
            return (
                f"the sink was called for batch {batch_id} while another call for batch "
                f"{self._under_way.batch_id} was under "
                f"way in another thread. Call it once per batch: {HOW_TO_WRITE_SEVERAL}. "
                "Nothing of this call was written"
            )
        if failure is not None:
            return self._refusal_after(failure, call)
        if self.last is None or batch_id > self.last:
            return None
        if batch_id < self.last:
            return (
                f"the sink was called for batch {batch_id}, but this run of the query has "
                f"finished batch {self.last}: pass "
                "on the batch id that Spark gives to your function. Nothing of this call was "
                "written"
            )
        if call.is_skip:
            return None
        self.damage = Damage(short=batch_id)
        return (
            f"the sink was called a second time for batch {batch_id}. The first call is "
            "committed, so the batch holds only "
            "the first call's rows, and those of this call are not written. To write several "
            f"DataFrames, {HOW_TO_WRITE_SEVERAL}"
        )

    def _refusal_after(self, failure: _Failure, call: Call) -> str | None:
        failed = failure.call.batch_id
        if failure.may_repeat and failure.call.is_skip and call.batch_id >= failed:
            return None  # No rows, so none are lost.
        if call.batch_id == failed and failure.may_repeat:
            if call.is_skip or _are_same(failure.call.frames, call.frames):
                return None
            return (
                f"the call for batch {failed} failed ({failure.words}), and this call brings "
                "other rows for the same batch: "
                "if it were committed, those of the failed call would be lost. Repeat the same "
                "call, or let the exception "
                "stop the query. Nothing of this call was written"
            )
        if not failure.may_repeat:
            return (
                "an earlier call of the sink in this run was refused, and the query went on: "
                f"{failure.words}. Do not catch "
                "the sink's exceptions: let them stop the query, and start it again. Nothing of "
                "this call was written"
            )
        # Whoever was fenced must leave the ledger to its new owner.
        if not isinstance(failure.problem, SinkFenced):
            self.damage = Damage(lost=failed)
        return (
            f"the sink failed in batch {failed} ({failure.words}), but the query went on to "
            f"batch {call.batch_id}: the rows "
            f"of batch {failed} are missing. Do not catch the sink's exceptions: let them stop "
            "the query, and start it "
            "again. Nothing of this call was written"
        )


def _are_same(frames: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    try:
        return len(frames) == len(others) and all(
            one is other or one.sameSemantics(other)
            for one, other in zip(frames, others, strict=True)
        )
    except Exception as problem:  # noqa: BLE001 - something that is no DataFrame, or a session that is gone.
        log.debug("whether two calls bring the same rows is not known: %s", problem)
        return False


_books: Final[OrderedDict[tuple[str, ...], RunCalls]] = OrderedDict()
_books_lock: Final = threading.Lock()


def calls_of(transactional_id: str, servers: Iterator[str], run: tuple[str, str]) -> RunCalls:
    """The book of one run of a query with one transactional id."""
    key = (transactional_id, ",".join(sorted(servers)), *run)
    with _books_lock:
        found = _books.get(key)
        if found is None:
            others = {other[0] for other in _books if other[2:] == run} - {transactional_id}
            if others:
                log.warning(
                    "query %s uses two sinks (%s, %s): their transactions are not one, so a "
                    "crash may leave one committed "
                    "and the other not. Several DataFrames are one transaction with sink.write",
                    run[0],
                    transactional_id,
                    min(others),
                )
            found = _books[key] = RunCalls()
            while len(_books) > RUNS_KEPT:
                _books.popitem(last=False)
        _books.move_to_end(key)
        return found
