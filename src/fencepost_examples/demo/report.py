"""The report at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost_examples.demo.plan import Victim
from fencepost_examples.refunds.spark.settlements import AT_LEAST_ONCE, EXACTLY_ONCE

if TYPE_CHECKING:
    from fencepost_examples.demo.run import DemoOptions, History
    from fencepost_examples.refunds.spark.audit import Findings

WIDTHS = (47, 14, 15)


def has_passed(history: History, options: DemoOptions) -> bool:
    """Whether the exactly-once query has no violation. The other one is only for comparison."""
    findings = history.findings[EXACTLY_ONCE]
    return findings.is_clean and findings.rows["settlements"] == options.settlements


def write_report(history: History, options: DemoOptions) -> list[str]:
    """Returns the lines of the report, which ends with the verdict."""
    sides = [history.findings[side] for side in options.sides]
    first, last = ("settlements", "refunds in refunds-emitted")
    if options.postgres:
        first, last = ("requests in refund_request", "payments in refund_payment")
    lines = [
        *_what_happened(history, options),
        _line("", *(side.replace("-", " ") for side in options.sides)),
        _line(first, *(f"{side.rows['settlements']:,}" for side in sides)),
        _line("decisions in refund-audit", *(f"{side.rows['decisions']:,}" for side in sides)),
        _line(last, *(f"{side.rows['refunds']:,}" for side in sides)),
        "violations:",
    ]
    answers = [
        _line(f"  {question}", *(_count(side, question) for side in sides))
        for question in sides[0].wrong
    ]
    cost = _line("  rupees paid too much", *(rupees(side.paid_too_much_paise) for side in sides))
    return [*lines, *answers, cost, "", *verdict(history, options)]


def verdict(history: History, options: DemoOptions) -> list[str]:
    """Returns a sentence about the exactly-once query, and one about the other."""
    if not has_passed(history, options):
        return ["FAILED: the exactly-once query lost or doubled something. See the numbers above."]
    sentences = ["PASSED: every settlement was decided once, and every refund was paid once."]
    plain = history.findings.get(AT_LEAST_ONCE)
    if plain is not None:
        doubled = plain.wrong["refunds paid more than once"]
        sentences.append(
            f"Without transactions, {doubled:,} refunds were paid more than once."
            if doubled
            else "Without transactions nothing was doubled either this time: try another seed."
        )
    return sentences


def rupees(paise: int) -> str:
    """Formats paise as rupees."""
    return f"{paise // 100:,}.{paise % 100:02}"


def _what_happened(history: History, options: DemoOptions) -> list[str]:
    struck = history.killed()
    paused, rolled = struck.pop(Victim.PAUSED_BROKER, 0), struck.pop(Victim.ROLLED_BROKER, 0)
    words = ", ".join(f"{count} x {victim.value}" for victim, count in struck.items())
    lines = [f"Killed: {words or 'nothing'}. Seed {options.seed}, {history.seconds:.0f} s."]
    if options.brokers > 1:
        lines.append(f"Of {options.brokers} brokers, one was paused {paused} x, rolled {rolled} x.")
    return lines


def _count(side: Findings, question: str) -> str:
    """Returns a count; "-" for the offsets, which exist with transactions only."""
    return f"{side.wrong[question]:,}" if question in side.wrong else "-"


def _line(name: str, *values: str) -> str:
    cells = [name.ljust(WIDTHS[0])]
    cells += [value.rjust(width) for value, width in zip(values, WIDTHS[1:], strict=False)]
    return "".join(cells).rstrip()
