"""Settlements, the merchants' rules, and the topics. Amounts are integers, in paise."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

SETTLEMENT_SCHEMA: Final = (
    "refund_id string, merchant string, amount_paise long, reason string, actor string, day string"
)
REFUND_SCHEMA: Final = "refund_id string, merchant string, amount_paise long"
AUDIT_SCHEMA: Final = (
    f"{SETTLEMENT_SCHEMA}, decision string, source_partition int, source_offset long"
)
"""An audit row has its settlement's partition and offset, to compare output and committed
offsets."""

APPROVED: Final = "approved"
ABOVE_DAILY_LIMIT: Final = "refused: above the limit of the day"

REASONS: Final = (
    "duplicate charge",
    "order cancelled",
    "item missing",
    "late delivery",
    "goodwill",
)
ACTORS: Final = ("support desk", "merchant portal", "automatic rule")
MERCHANT_COUNT: Final = 12


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one pipeline. The at-least-once query has its own output topics."""

    settlements: str
    refunds: str
    audit: str

    @classmethod
    def of(cls, writing: str = EXACTLY_ONCE, prefix: str = "") -> Topics:
        """Returns the topics of a query."""
        side = "" if writing == EXACTLY_ONCE else f"{writing}-"
        return cls(
            f"{prefix}settlements", f"{prefix}{side}refunds-emitted", f"{prefix}{side}refund-audit"
        )

    @property
    def schemas(self) -> dict[str, str]:
        """The columns of each topic's JSON."""
        return {
            self.settlements: SETTLEMENT_SCHEMA,
            self.refunds: REFUND_SCHEMA,
            self.audit: AUDIT_SCHEMA,
        }


@dataclass(frozen=True, slots=True)
class Settlement:
    """One request for a refund."""

    refund_id: str
    merchant: str
    amount_paise: int
    reason: str
    actor: str
    day: str

    def as_json(self) -> bytes:
        """Returns the value of its record."""
        return json.dumps(asdict(self), separators=(",", ":")).encode("utf-8")


@dataclass(frozen=True, slots=True)
class MerchantRule:
    """The limits of one merchant."""

    merchant: str
    highest_paise: int
    daily_limit_paise: int
    goodwill_allowed: bool


def merchant_rules() -> list[MerchantRule]:
    """Returns the rules, which are the same on every run."""
    rng = random.Random(7)
    return [
        MerchantRule(
            merchant=f"merchant-{number:02}",
            highest_paise=rng.choice((50_000, 100_000, 250_000)),
            daily_limit_paise=rng.choice((1_000_000, 3_000_000)),
            goodwill_allowed=rng.random() < 0.5,
        )
        for number in range(MERCHANT_COUNT)
    ]


def generate(count: int, seed: int = 1) -> Iterator[Settlement]:
    """Yields `count` settlements, the same for the same seed.

    Some have a merchant without rules.
    """
    rng = random.Random(seed)
    for number in range(count):
        yield Settlement(
            refund_id=f"refund-{number:07}",
            merchant=f"merchant-{rng.randrange(MERCHANT_COUNT + 1):02}",
            amount_paise=rng.randrange(100, 300_000),
            reason=rng.choice(REASONS),
            actor=rng.choice(ACTORS),
            day=f"2026-01-{1 + number * 5 // max(1, count):02}",
        )
