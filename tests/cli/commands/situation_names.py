"""Names of a situation, as kept screens have them."""

from __future__ import annotations

from tests.forensics import situations


def names_of(found: situations.Situation) -> dict[str, str]:
    return {found.transactional_id: "refunds-00000000", found.partition.topic: "orders-00000000"}
