"""What the counts mean: which are findings, how certain, and what could not be judged. Pure.

    proven   nothing else explains it, given the key and what the user said about the pipeline
    likely   something else could, and the sentence of the finding says what

The offsets of the group, or of `until`, bound what can be missing. Without them
the last input of each partition that has an output is the bound. Where retention has deleted
outputs, an input is judged only from the first input on that has an output in each partition that
lost records: what came before may have had its output in the deleted part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from fencepost.spark.auditing.bounds import Bounds
from fencepost.spark.auditing.job import Summary
from fencepost.spark.auditing.matching import Array, Kind, Rules
from fencepost.spark.auditing.question import ALL_OR_NONE, ANY, Question
from fencepost.spark.auditing.result import AuditFinding

PROVEN: Final = "proven"
LIKELY: Final = "likely"

SENTENCES: Final = {
    Kind.MISSING: "Inputs without any output",
    Kind.TORN: "Inputs with only some of their outputs",
    Kind.DOUBLED: "Outputs beyond those that their inputs explain",
    Kind.UNEXPECTED: "Outputs with a key that no input has",
    Kind.REORDERED: "Outputs behind the output of a later input",
    Kind.AHEAD: "Outputs of inputs that the group has not committed",
    Kind.CHANGED: "Outputs that do not have the contents of their input",
}


def first_rules(question: Question, bounds: Bounds) -> Rules:
    """The rules before anything was read."""
    judges_shortage = question.expect != ANY and not _are_compacted(bounds, question.output.topics)
    return Rules(
        slots=tuple(place.slot for place in bounds.places),
        sets=question.output_slots,
        per_input=question.per_input,
        is_distinct=question.distinct,
        judges_missing=judges_shortage and question.expect != ALL_OR_NONE,
        judges_torn=judges_shortage,
        due_from=tuple(place.start for place in bounds.inputs),
        due_below=bounds.required,
        committed=bounds.committed,
        without_order=tuple(number for number, p in enumerate(bounds.places) if p.is_table),
    )


def final_rules(rules: Rules, bounds: Bounds, summary: Summary) -> Rules:
    """The rules with what the first run has shown."""
    starts = log_starts(bounds, summary)
    reached = _reached(summary.pairs)
    due_from, due_below = [], []
    for number, place in enumerate(bounds.inputs):
        below = rules.due_below[number]
        if not bounds.is_certain and not place.is_table:
            most = [last for _, last in reached[number].values()]
            below = min(below, max(most, default=place.start))
        due_below.append(below)
        due_from.append(min(_first_judged(number, bounds, starts, reached[number]), below))
    return replace(rules, due_from=tuple(due_from), due_below=tuple(due_below))


def _first_judged(
    number: int,
    bounds: Bounds,
    starts: Sequence[int],
    reached: dict[int, tuple[int, int]],
) -> int:
    """From which input on outputs cannot have been deleted."""
    first = starts[number]
    for slot in {place.slot for place in bounds.outputs}:
        places = [n for n, place in enumerate(bounds.places) if place.slot == slot]
        known = [n for n in places if n in reached]
        # A partition whose outputs all go to one partition is copied as it is.
        concerned = known if len(known) == 1 else places
        for output in concerned:
            if starts[output] > 0:
                least = reached[output][0] if output in reached else bounds.places[number].end
                first = max(first, least)
    return first


def _reached(pairs: Array) -> defaultdict[int, dict[int, tuple[int, int]]]:
    """By input place and output place: the first and last matched input."""
    found: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in pairs:
        here = found[int(row["input_place"])]
        output, least, most = int(row["output_place"]), int(row["least"]), int(row["most"])
        before = here.get(output, (least, most))
        here[output] = (min(before[0], least), max(before[1], most))
    return found


def log_starts(bounds: Bounds, summary: Summary) -> list[int]:
    """For each place from where on it was read."""
    starts = [place.start for place in bounds.places]
    for seen in summary.statistics:
        starts[seen.place] = max(starts[seen.place], seen.lost_below)
    return starts


def can_filter(summary: Summary) -> bool:
    """Whether the findings of the first run can be filtered by new limits, one by one."""
    shortages = summary.findings[_is_shortage(summary.findings)]
    return not summary.is_cut and not shortages["is_ambiguous"].any()


def filter_findings(summary: Summary, rules: Rules) -> Summary:
    """The summary as if it had been made with these rules."""
    found = summary.findings
    place = np.maximum(found["input_place"], 0)
    first = np.array([*rules.due_from, 0], np.int64)[np.minimum(place, len(rules.due_from))]
    last = np.array([*rules.due_below, 0], np.int64)[np.minimum(place, len(rules.due_below))]
    is_due = (found["input_offset"] >= first) & (found["input_offset"] < last)
    left = found[~_is_shortage(found) | is_due]
    counts = dict(summary.counts)
    for kind in (Kind.MISSING, Kind.TORN):
        counts[kind] = int((left["kind"] == kind).sum())
    waiting = summary.waiting + len(found) - len(left)
    return replace(summary, findings=left, counts=counts, waiting=waiting)


def _is_shortage(findings: Array) -> Array:
    found: Array = np.isin(findings["kind"], (Kind.MISSING, Kind.TORN))
    return found


def judge(
    question: Question, bounds: Bounds, summary: Summary
) -> tuple[dict[Kind, AuditFinding], list[tuple[int, str]]]:
    """What was found, still without examples; and how much was not judged, and why."""
    found: dict[Kind, AuditFinding] = {}
    left_out: list[tuple[int, str]] = []
    for kind, count in summary.counts.items():
        but, reason = _doubts(kind, question, bounds, summary)
        if reason:
            left_out.append((count, reason))
        elif count:
            sentence = SENTENCES[kind] + (f", {but}" if but else "")
            certainty = LIKELY if but else PROVEN
            found[kind] = AuditFinding(kind.name.lower(), count, certainty, sentence)
    left_out += _unjudged(question, bounds, summary)
    return found, [(count, reason) for count, reason in left_out if count]


def blind_spots(question: Question, bounds: Bounds, summary: Summary) -> Iterable[str]:
    """Why a pipeline without findings may still have lost or doubled something."""
    if not question.counts_per_key:
        if summary.repeated and not question.distinct:
            yield (
                f"{summary.repeated:,} inputs share their key with others, and if the output of "
                "one is lost and that of another is there twice, the count is right"
            )
        if question.per_input > 1:
            yield (
                f"the {question.per_input} outputs of an input have the same key, and if one is "
                "lost and another is there twice, the count is right"
            )
    if _are_compacted(bounds, question.output.topics):
        yield "compaction removes outputs, so that missing and doubled ones do not show"
    if _are_compacted(bounds, question.input.topics) and question.input.key.column == "key":
        yield "compaction removes inputs with equal keys, so that the rest look unique"


def _doubts(kind: Kind, question: Question, bounds: Bounds, summary: Summary) -> tuple[str, str]:
    """What else explains a finding; and why it is none, if that is as likely."""
    inputs_gone, outputs_gone = _are_gone(bounds, summary)
    inputs_gone |= _are_compacted(bounds, question.input.topics)
    inputs, outputs = " or ".join(question.input.tables), " or ".join(question.output.tables)
    if kind is Kind.UNEXPECTED and inputs_gone:
        return "", "outputs without an input: theirs may be among the deleted inputs"
    if kind is Kind.DOUBLED and inputs_gone:
        if summary.repeated:
            return "", "outputs too many: deleted inputs may have had the same key"
        return "unless deleted inputs had the key", ""
    if kind in (Kind.UNEXPECTED, Kind.DOUBLED) and inputs:
        return f"unless rows of {inputs} were deleted", ""
    if kind in (Kind.MISSING, Kind.TORN):
        if not bounds.is_certain:
            return "unless the pipeline takes longer than the grace period", ""
        if outputs_gone:
            return "unless the output is among the deleted ones", ""
        if outputs:
            return f"unless rows of {outputs} were deleted", ""
    if kind is Kind.CHANGED and question.tables:
        return f"unless rows of {' or '.join(question.tables)} were updated", ""
    return "", ""


def _unjudged(question: Question, bounds: Bounds, summary: Summary) -> tuple[tuple[int, str], ...]:
    unkeyed_inputs = sum(s.unkeyed for s in summary.statistics if bounds.places[s.place].is_input)
    unkeyed = sum(s.unkeyed for s in summary.statistics) - unkeyed_inputs
    return (
        (summary.waiting, _why_waiting(question, bounds, summary)),
        (summary.held_back, "inputs whose outputs are in an open transaction"),
        (unkeyed_inputs, f"inputs without the key {' or '.join(question.input.keys)}"),
        (unkeyed, f"outputs without the key {' or '.join(question.output.keys)}"),
    )


def _why_waiting(question: Question, bounds: Bounds, summary: Summary) -> str:
    _, is_gone = _are_gone(bounds, summary)
    deleted = ", or from before the outputs that retention left" if is_gone else ""
    if question.input.tables:
        running = "of transactions that were running when the audit began"
        if not question.input.topics:
            return f"inputs without output {running}{deleted}"
        deleted = f", or {running}{deleted}"
    if question.group is not None:
        return f"inputs without output beyond the offsets of {question.group}{deleted}"
    if question.until_ms is not None:
        return f"inputs without output from after the time of until{deleted}"
    return f"inputs without output behind the last one that has an output{deleted}"


def _are_gone(bounds: Bounds, summary: Summary) -> tuple[bool, bool]:
    """Whether the first inputs of a partition were deleted, and outputs."""
    starts, inputs = log_starts(bounds, summary), len(bounds.inputs)
    return any(starts[:inputs]), any(starts[inputs:])


def _are_compacted(bounds: Bounds, topics: Iterable[str]) -> bool:
    return not bounds.compacted.isdisjoint(topics)
