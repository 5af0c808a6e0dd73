"""The screen of `top` in any width."""

from __future__ import annotations

import pytest

from fencepost.cli.top_screen import _lines


@pytest.mark.parametrize(
    ("width", "last"),
    [
        (120, "x" * 50 + "  12.3 s  open"),
        (30, "x" * 15 + "…  12.3 s  open"),
        (22, "x" * 7 + "…  12.3 s  open"),
        (18, "x" * 9 + "…  12.3 s"),
        (9, "x" * 8 + "…"),
    ],
)
def test_names_are_shortened_and_figures_are_left_out_rather_than_cut(
    width: int, last: str
) -> None:
    cells = {"client": ["client", "x" * 50], "age_ms": ["age", "12.3 s"], "kind": ["kind", "open"]}
    assert _lines(cells, width)[-1] == last
