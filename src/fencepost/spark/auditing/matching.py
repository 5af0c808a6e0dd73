"""The second stage: records whose keys have equal hashes, into findings and matched pairs. Pure.

The records of a bucket are sorted by hash; those of one key are a group. Within a group they keep
their order: inputs before outputs, by partition and offset. For each group it counts

    n          inputs; `due` of them must have outputs
    got[s]     outputs in the set s (a topic, or all topics that share an input's outputs)
    open       records of transactions that are still open

An input has `per_input` outputs in each set. So the number of complete inputs is the least, and of
inputs with any output the most, of got[s] / per_input over the sets. Where several inputs have the
same key it is not known which of them an output belongs to: the first ones are taken, and the
finding says so (`is_ambiguous`). If more than the keys is compared, an output is changed if no
input with its key has its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from fencepost.spark.auditing.keys import MIXER

Array = np.ndarray[Any, np.dtype[Any]]


class Kind(IntEnum):
    """What is wrong with a record."""

    MISSING = 0
    TORN = 1
    DOUBLED = 2
    UNEXPECTED = 3
    REORDERED = 4
    AHEAD = 5
    CHANGED = 6


_PLACES: Final = [("input_place", "<i4"), ("output_place", "<i4")]
_POSITIONS: Final = [*_PLACES, ("input_offset", "<i8"), ("output_offset", "<i8")]

FINDING: Final = np.dtype(
    [("kind", "<i4"), ("is_ambiguous", "<i4"), *_POSITIONS, ("lacking", "<u8")], align=True
)
"""`lacking` has a bit for each set of outputs in which a torn input has too few. Places and offsets
are -1 if there is none."""

MATCH: Final = np.dtype(_POSITIONS, align=True)
"""An output and its only input."""

PAIR: Final = np.dtype([*_PLACES, ("least", "<i8"), ("most", "<i8")], align=True)
"""The first and last input of one partition that has an output in another."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the pipeline should do, in numbers."""

    slots: tuple[int, ...]
    """For each place its set of outputs; -1 for inputs."""
    sets: int
    per_input: int
    is_distinct: bool
    judges_missing: bool
    judges_torn: bool
    due_from: tuple[int, ...]
    due_below: tuple[int, ...]
    """For each input place: which offsets must have outputs."""
    committed: tuple[int, ...] | None
    without_order: tuple[int, ...] = ()
    """Places whose records have no order: tables."""


class Records(NamedTuple):
    """The records of a bucket, sorted by place and offset."""

    first: Array
    second: Array
    """The two words of the hash."""
    place: Array
    offset: Array
    is_open: Array
    """Whether its transaction was open."""
    content: Array | None = None
    """The hash of what is compared beside the key, if anything is."""


class Outcome(NamedTuple):
    """What a bucket showed."""

    findings: Array
    matches: Array
    pairs: Array
    waiting: int
    """Inputs that lack outputs and need not have them yet."""
    held_back: int
    """Inputs that lack an output, and have one in an open transaction."""
    repeated: int
    """Inputs whose key another input has, too."""


def match(records: Records, rules: Rules) -> Outcome:
    """Judges one bucket."""
    return _Groups(_sorted(records), rules).outcome()


def _sorted(records: Records) -> Records:
    order = np.argsort(records.first, kind="stable")
    found = _in_order(records, order)
    same = found.first[1:] == found.first[:-1]
    if (same & (found.second[1:] != found.second[:-1])).any():
        # Two keys share the first word, so that their records may alternate.
        order = np.lexsort((records.second, records.first))
        found = _in_order(records, order)
    return found


def _in_order(records: Records, order: Array) -> Records:
    content = records.content
    found = Records(*(column[order] for column in records[:5]))
    return found if content is None else found._replace(content=content[order])


class _Groups:
    """The records of a bucket in groups of equal keys."""

    def __init__(self, records: Records, rules: Rules) -> None:
        self._records = records
        self._rules = rules
        count = len(records.first)
        is_new = np.ones(count, bool)
        if count:
            is_new[1:] = (records.first[1:] != records.first[:-1]) | (
                records.second[1:] != records.second[:-1]
            )
        self._group = np.cumsum(is_new) - 1
        self._size = int(is_new.sum())
        slot = np.array(rules.slots, np.int64)[records.place]
        self._is_input = slot < 0
        self._is_output = (slot >= 0) & ~records.is_open
        self._slot = slot
        self._inputs = self._per_group(self._is_input)
        self._is_due = self._is_input & self._is_in(rules.due_from, rules.due_below)
        self._got = np.stack(
            [self._per_group(self._is_output & (slot == each)) for each in range(rules.sets)]
        )
        self._open = self._per_group(records.is_open)
        # By group: place and offset of its only input; -1 if there are none or several.
        self._only_place, self._only_offset = np.full((2, self._size), -1, np.int64)
        only = np.flatnonzero(self._is_input & (self._inputs[self._group] == 1))
        self._only_place[self._group[only]] = records.place[only]
        self._only_offset[self._group[only]] = records.offset[only]

    def _per_group(self, wanted: Array) -> Array:
        return np.bincount(self._group[wanted], minlength=self._size)

    def _is_in(self, start: tuple[int, ...], end: tuple[int, ...]) -> Array:
        """Which inputs are in these offsets; of outputs it means nothing."""
        missing = len(self._rules.slots) - len(start)
        first = np.array([*start, *[0] * missing], np.int64)[self._records.place]
        last = np.array([*end, *[0] * missing], np.int64)[self._records.place]
        return (self._records.offset >= first) & (self._records.offset < last)

    def outcome(self) -> Outcome:
        due = self._per_group(self._is_due)
        lacking, missing, torn = self._shortages(self._counted(due))
        nothing = np.zeros_like(missing)
        found = [
            self._input_findings(Kind.MISSING, missing, behind=nothing, lacking=nothing),
            self._input_findings(Kind.TORN, torn, behind=missing, lacking=lacking),
            *self._excess(),
        ]
        held_back = (missing + torn)[self._open > 0].sum() if self._size else 0
        matches = self._matches()
        return Outcome(
            np.concatenate(found),
            matches,
            pairs_of(matches),
            self._waiting(due),
            int(held_back),
            int(self._inputs[self._inputs > 1].sum()),
        )

    def _waiting(self, due: Array) -> int:
        if not self._rules.judges_missing:
            return 0
        complete = (self._got // self._rules.per_input).min(axis=0)
        every, judged = self._counted(self._inputs), self._counted(due)
        return int((np.maximum(every - complete, 0) - np.maximum(judged - complete, 0)).sum())

    def _counted(self, inputs: Array) -> Array:
        """How many inputs count: with `distinct`, those with equal keys are one."""
        return np.minimum(inputs, 1) if self._rules.is_distinct else inputs

    def _shortages(self, due: Array) -> tuple[Array, Array, Array]:
        """By group: the sets in which outputs are lacking, missing inputs and torn inputs."""
        rules = self._rules
        complete = np.minimum((self._got // rules.per_input).min(axis=0), due)
        begun = np.minimum((-(-self._got // rules.per_input)).max(axis=0), due)
        bits = np.left_shift(np.uint64(1), np.arange(rules.sets, dtype=np.uint64))
        # An input that has begun is due in all sets.
        lacking = (
            (self._got < begun * rules.per_input).astype(np.uint64) * bits[:, np.newaxis]
        ).sum(axis=0, dtype=np.uint64)
        nothing = np.zeros_like(due)
        missing = due - begun if rules.judges_missing else nothing
        torn = begun - complete if rules.judges_torn else nothing
        return lacking, missing, torn

    def _input_findings(
        self, kind: Kind, per_group: Array, *, behind: Array, lacking: Array
    ) -> Array:
        """The last due inputs of each group but for those `behind`: the missing, if it is torn."""
        per_group = np.where(self._open > 0, 0, per_group)
        if not per_group.any():
            return np.zeros(0, FINDING)
        rows = np.flatnonzero(self._is_due & (per_group[self._group] > 0))
        groups = self._group[rows]
        from_end = _rank(groups[::-1])[::-1] - behind[groups]
        chosen = (from_end >= 0) & (from_end < per_group[groups])
        rows, groups = rows[chosen], groups[chosen]
        return findings_of(
            kind,
            len(rows),
            input_place=self._records.place[rows],
            input_offset=self._records.offset[rows],
            is_ambiguous=self._inputs[groups] > 1,
            lacking=lacking[groups],
        )

    def _excess(self) -> list[Array]:
        """Outputs beyond what their inputs explain, and beyond what the group has committed."""
        rules = self._rules
        rows = np.flatnonzero(self._is_output)
        groups = self._group[rows]
        rank = _rank(groups * rules.sets + self._slot[rows])
        explained = (self._counted(self._inputs) * rules.per_input)[groups]
        is_excess = rank >= explained
        has_input = explained > 0
        found = [
            self._output_findings(Kind.DOUBLED, rows[is_excess & has_input]),
            self._output_findings(Kind.UNEXPECTED, rows[is_excess & ~has_input]),
        ]
        if rules.committed is not None:
            start = (0,) * len(rules.committed)
            below = self._per_group(self._is_input & self._is_in(start, rules.committed))
            covered = (self._counted(below) * rules.per_input)[groups]
            is_ahead = (rank >= covered) & ~is_excess
            found.append(self._output_findings(Kind.AHEAD, rows[is_ahead]))
        found.append(self._changed(rows[~is_excess]))
        return found

    def _changed(self, rows: Array) -> Array:
        """Of these outputs, those whose content no input with their key has."""
        content = self._records.content
        if content is None:
            return np.zeros(0, FINDING)
        labels = content ^ (self._group.astype(np.uint64) * MIXER)
        is_known = np.isin(labels[rows], labels[self._is_input])
        return self._output_findings(Kind.CHANGED, rows[~is_known])

    def _output_findings(self, kind: Kind, rows: Array) -> Array:
        return findings_of(
            kind,
            len(rows),
            is_ambiguous=self._inputs[self._group[rows]] > 1,
            **self._positions(rows),
        )

    def _positions(self, rows: Array) -> dict[str, Array]:
        """These outputs, and the only input of each."""
        groups = self._group[rows]
        return {
            "input_place": self._only_place[groups],
            "output_place": self._records.place[rows],
            "input_offset": self._only_offset[groups],
            "output_offset": self._records.offset[rows],
        }

    def _matches(self) -> Array:
        """The outputs of inputs whose key is unique, and that have not too many outputs."""
        is_single = (self._inputs == 1) & (self._got <= self._rules.per_input).all(axis=0)
        rows = np.flatnonzero(self._is_output & is_single[self._group])
        found = np.zeros(len(rows), MATCH)
        for name, values in self._positions(rows).items():
            found[name] = values
        return found


def pairs_of(matches: Array) -> Array:
    """The range of matched inputs for each pair of partitions."""
    if not len(matches):
        return np.zeros(0, PAIR)
    labels = (matches["input_place"].astype(np.int64) << 32) | matches["output_place"]
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(_rank(labels[order]) == 0)
    offsets = matches["input_offset"][order]
    found = np.zeros(len(starts), PAIR)
    found["input_place"] = matches["input_place"][order][starts]
    found["output_place"] = matches["output_place"][order][starts]
    found["least"] = np.minimum.reduceat(offsets, starts)
    found["most"] = np.maximum.reduceat(offsets, starts)
    return found


def findings_of(kind: Kind, count: int, **columns: Array) -> Array:
    """Findings of one kind, with what is known of them."""
    found = np.zeros(count, FINDING)
    found["kind"] = kind
    for name, _ in _POSITIONS:
        found[name] = columns.pop(name, -1)
    for name, values in columns.items():
        found[name] = values
    return found


def _rank(labels: Array) -> Array:
    """The position of each item among neighbours with the same label."""
    if not len(labels):
        return labels
    starts = np.flatnonzero(np.concatenate(([True], labels[1:] != labels[:-1])))
    lengths = np.diff(np.append(starts, len(labels)))
    return np.arange(len(labels)) - np.repeat(starts, lengths)
