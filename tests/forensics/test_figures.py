"""Figures with their certainty."""

from __future__ import annotations

import pytest

from fencepost.forensics.figures import Figure, estimated, exact, unknown
from fencepost.forensics.record_counts import add


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ((exact(1, "a"), exact(2, "a")), exact(3, "a")),
        ((exact(1, "a"), estimated(2, "b")), estimated(3, "a; b")),
        ((exact(1, "a"), unknown("gone")), estimated(1, "a; gone")),
        ((unknown("gone"),), unknown("gone")),
    ],
)
def test_a_sum_is_as_sure_as_its_parts(parts: tuple[Figure, ...], total: Figure) -> None:
    assert add(*parts) == total
