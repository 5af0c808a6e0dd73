"""The table of docs/guide/settings.md that says what exactly-once costs.

The figures come from the tables that `make bench` writes into docs/performance-details.md, so the
two pages never differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "performance-details.md"


class Step(NamedTuple):
    """A guarantee, and the place of the figure for it."""

    name: str
    load: str
    measure: str
    share: str = ""


_TEN: Final = "10 records per request and transaction, 16 producers"
_THOUSAND: Final = "1,000 records per request and transaction, 16 producers"
_IDEMPOTENT: Final = ("idempotent: records/s", "idempotent: share of acks=1")
_TRANSACTION: Final = ("TV2: records/s", "TV2: share of acks=1")

STEPS: Final = (
    Step("acks=1, 10 records per request", _TEN, "acks=1: records/s"),
    Step("idempotent, acks=all", _TEN, *_IDEMPOTENT),
    Step("a transaction per 10 records", _TEN, *_TRANSACTION),
    Step("ms p99 of such a transaction", _TEN, "TV2: ms p99"),
    Step("acks=1, 1,000 records per request", _THOUSAND, "acks=1: records/s"),
    Step("idempotent, acks=all", _THOUSAND, *_IDEMPOTENT),
    Step("a transaction per 1,000 records", _THOUSAND, *_TRANSACTION),
    Step("ms p99 of such a transaction", _THOUSAND, "TV2: ms p99"),
)


def cost_table() -> Iterator[str]:
    """The rows; a figure that the page no longer has is an error."""
    text = PAGE.read_text(encoding="utf-8")
    yield "| step | fencepost | Apache Kafka 4.3 |"
    yield "|---|---:|---:|"
    for step in STEPS:
        _, *figures = figures_of(text, step.load, step.measure)
        if step.share:
            _, *shares = figures_of(text, step.load, step.share)
            figures = [
                f"{figure} ({float(share):.2f})"
                for figure, share in zip(figures, shares, strict=True)
            ]
        yield f"| {step.name} | {figures[0]} | {figures[1]} |"


def figures_of(text: str, load: str, measure: str) -> list[str]:
    """The ratio, our median and Apache Kafka's, without the ranges."""
    row = re.search(
        rf"^\| {re.escape(measure)} \|([^|]*)\|([^|]*)\|([^|]*)\|",
        _section(text, load),
        re.MULTILINE,
    )
    assert row, f"docs/performance-details.md has no {measure!r} of {load!r}"
    return [figure.split("(")[0].strip() for figure in row.groups()]


def day_of(text: str, load: str) -> str:
    """When the load ran: it says so itself, or the table of the machine does."""
    own = re.search(r"^(\d{4}-\d\d-\d\d)", _section(text, load), re.MULTILINE)
    common = re.search(r"^\| date \| ([\d-]+(?: and \d+)?)", text, re.MULTILINE)
    assert common, "docs/performance-details.md has no date"
    return own[1] if own else common[1]


def _section(text: str, load: str) -> str:
    return text.partition(f"\n### {load}\n")[2].partition("\n### ")[0]
