"""The table of docs/guide/settings.md that compares our figures with those often quoted.

Our figures come from the tables that `make bench` writes into docs/performance-details.md, so the
two pages never differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "performance-details.md"


class Step(NamedTuple):
    """One quoted claim, and the place of our figure for it."""

    name: str
    quoted: str
    load: str
    measure: str
    share: str = ""


_TEN: Final = "10 records per request and transaction, 16 producers"
_THOUSAND: Final = "1,000 records per request and transaction, 16 producers"

STEPS: Final = (
    Step("acks=1, 10 records per request", "650,000", _TEN, "acks=1: records/s"),
    Step(
        "idempotent, acks=all",
        "420,000 (0.65)",
        _TEN,
        "idempotent: records/s",
        "idempotent: share of acks=1",
    ),
    Step(
        "a transaction per 10 records",
        "180,000 (0.28)",
        _TEN,
        "TV2: records/s",
        "TV2: share of acks=1",
    ),
    Step("ms p99 of such a transaction", "45", _TEN, "TV2: ms p99"),
    Step("acks=1, 1,000 records per request", "650,000", _THOUSAND, "acks=1: records/s"),
    Step(
        "idempotent, acks=all",
        "420,000 (0.65)",
        _THOUSAND,
        "idempotent: records/s",
        "idempotent: share of acks=1",
    ),
    Step(
        "a transaction per 1,000 records",
        "390,000 (0.60)",
        _THOUSAND,
        "TV2: records/s",
        "TV2: share of acks=1",
    ),
    Step("ms p99 of such a transaction", "48", _THOUSAND, "TV2: ms p99"),
)


def cost_table() -> Iterator[str]:
    """The rows; a figure that the page no longer has is an error."""
    text = PAGE.read_text(encoding="utf-8")
    yield "| step | often quoted | fencepost | Apache Kafka 4.3 |"
    yield "|---|---:|---:|---:|"
    for step in STEPS:
        _, *figures = figures_of(text, step.load, step.measure)
        if step.share:
            _, *shares = figures_of(text, step.load, step.share)
            figures = [
                f"{figure} ({float(share):.2f})"
                for figure, share in zip(figures, shares, strict=True)
            ]
        yield f"| {step.name} | {step.quoted} | {figures[0]} | {figures[1]} |"


def figures_of(text: str, load: str, measure: str) -> list[str]:
    """The ratio, our median and Apache Kafka's, without the ranges."""
    row = re.search(
        rf"^### {re.escape(load)}\n(?:(?!###).*\n)*?\| {re.escape(measure)} "
        r"\|([^|]*)\|([^|]*)\|([^|]*)\|",
        text,
        re.MULTILINE,
    )
    assert row, f"docs/performance-details.md has no {measure!r} of {load!r}"
    return [figure.split("(")[0].strip() for figure in row.groups()]
