"""What an audit found, for programs, notebooks and people."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_EXAMPLES: Final = 5
"""How many examples of each kind are shown."""


@dataclass(frozen=True, slots=True)
class Example:
    """One record that shows a finding."""

    key: str | None
    input: str | None
    """topic:partition:offset, or the table"""
    output: str | None = None
    lacking: tuple[str, ...] = ()
    """Topics in which a torn input has too few outputs."""
    is_ambiguous: bool = False
    """Whether several inputs have this key, so that it may be another one of them."""
    note: str = ""

    def __str__(self) -> str:
        words = [] if self.key is None else [f"key {self.key}"]
        words += [f"input {self.input}"] if self.input else []
        words += [f"output {self.output}"] if self.output else []
        words += [f"nothing in {', '.join(self.lacking)}"] if self.lacking else []
        words += ["or another input with this key"] if self.is_ambiguous and self.input else []
        words += [self.note] if self.note else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """All findings of one kind."""

    kind: str
    count: int
    certainty: str
    """proven or likely"""
    sentence: str
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class SideCounts:
    """What was read of the inputs or the outputs."""

    topics: tuple[str, ...]
    partitions: int
    records: int
    """Visible records."""
    aborted: int
    undecided: int
    deleted: int
    """Offsets that retention has deleted; they may have been markers, too."""
    tables: tuple[str, ...] = ()
    rows: int = 0
    """Rows of these tables."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of `fencepost.spark.audit`."""

    inputs: SideCounts
    outputs: SideCounts
    judged: int
    """Inputs that were judged."""
    findings: tuple[AuditFinding, ...]
    not_judged: tuple[tuple[int, str], ...]
    notes: tuple[str, ...] = ()
    compared: str = "key"
    """What inputs and outputs were matched by."""
    not_compared: str = "Values were not compared."
    blind_spots: tuple[str, ...] = ()
    """Why something may be wrong although nothing was found."""
    _rows: Callable[[], DataFrame] | None = field(default=None, repr=False, compare=False)

    @property
    def is_exactly_once(self) -> bool | None:
        """Whether nothing was found, by the key; None if something could be wrong unseen."""
        if self.findings:
            return False
        return True if self.judged and not self.blind_spots else None

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if any(each.certainty == "proven" for each in self.findings):
            return f"Not exactly-once by {self.compared}: {self._kinds()}."
        if self.findings:
            return f"Probably not exactly-once by {self.compared}: {self._kinds()}."
        if not self.judged:
            return "Cannot tell: no input could be judged."
        if self.blind_spots:
            return f"Cannot tell by {self.compared}: {'; '.join(self.blind_spots)}."
        return (
            f"Exactly-once by {self.compared} as far as it was judged: {self.judged:,} inputs. "
            f"{self.not_compared}"
        )

    def _kinds(self) -> str:
        return ", ".join(f"{each.count:,} {each.kind}" for each in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each kind that was found."""
        return {each.kind: each.count for each in self.findings}

    def rows(self) -> DataFrame:
        """All findings about records as a DataFrame; reads the topics again, up to the same ends.

        Columns: kind, key, inputTopic, inputPartition, inputOffset, outputTopic, outputPartition,
        outputOffset, lacking, ambiguous. A row of a table has the table for a topic, and neither
        partition nor offset; it has its key if the driver had it (200,000 findings of a kind).
        """
        assert self._rows is not None, "made without a session"
        return self._rows()

    def as_json(self) -> dict[str, Any]:
        """All fields for JSON."""
        return {
            "verdict": self.verdict,
            "is_exactly_once": self.is_exactly_once,
            "compared": self.compared,
            "not_compared": self.not_compared,
            "blind_spots": list(self.blind_spots),
            "judged_inputs": self.judged,
            "inputs": _side_json(self.inputs),
            "outputs": _side_json(self.outputs),
            "findings": [_finding_json(each) for each in self.findings],
            "not_judged": [{"count": n, "reason": why} for n, why in self.not_judged],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [self.verdict, "", _side_line("read", self.inputs), _side_line("and", self.outputs)]
        for each in self.findings:
            lines += ["", f"{each.kind}: {each.count:,} ({each.certainty})", f"  {each.sentence}."]
            # Indented so far that they are not wrapped.
            lines += [f"    {example}" for example in each.examples]
        if self.not_judged:
            lines += ["", "Not judged:"]
            lines += [f"  {count:,} {reason}" for count, reason in self.not_judged]
        return [*lines, *(("", *self.notes) if self.notes else ())]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows = "".join(_finding_html(each) for each in self.findings)
        table = (
            "<table><tr><th>finding</th><th>count</th><th>certainty</th><th>what</th>"
            f"<th>for example</th></tr>{rows}</table>"
        )
        left = "".join(
            f"<li>{count:,} {html.escape(reason)}</li>" for count, reason in self.not_judged
        )
        read = f"{_side_line('read', self.inputs)}; {_side_line('and', self.outputs)}"
        return (
            f"<p><b>{html.escape(self.verdict)}</b></p>"
            f"{table if self.findings else ''}"
            f"{f'<p>Not judged:</p><ul>{left}</ul>' if left else ''}"
            f"<p>{html.escape(read)}</p>"
        )


def _side_json(side: SideCounts) -> dict[str, Any]:
    found = asdict(side) | {"topics": list(side.topics), "tables": list(side.tables)}
    found["deleted_offsets"] = found.pop("deleted")
    return found


def _finding_json(found: AuditFinding) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "count": found.count,
        "certainty": found.certainty,
        "what": found.sentence,
        "examples": [
            asdict(each) | {"lacking": list(each.lacking), "note": each.note or None}
            for each in found.examples
        ],
    }


def _side_line(verb: str, side: SideCounts) -> str:
    others = [
        f"{count:,} {word}"
        for count, word in (
            (side.aborted, "aborted"),
            (side.undecided, "of open transactions"),
            (side.deleted, "offsets deleted before"),
        )
        if count
    ]
    partitions = "1 partition" if side.partitions == 1 else f"{side.partitions} partitions"
    more = f"; {', '.join(others)}" if others else ""
    found = [f"{side.rows:,} rows of {', '.join(side.tables)}"] if side.tables else []
    if side.topics:
        records = f"{side.records:,} records of {', '.join(side.topics)} ({partitions}{more})"
        found.insert(0, records)
    return f"{verb} {' and '.join(found)}"


def _finding_html(found: AuditFinding) -> str:
    examples = "<br>".join(html.escape(str(each)) for each in found.examples)
    cells = (found.kind, f"{found.count:,}", found.certainty, found.sentence)
    return (
        "<tr>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + f"<td>{examples}</td></tr>"
    )
