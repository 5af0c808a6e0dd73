"""Which columns fit, and how wide they are."""

from __future__ import annotations

from fencepost.cli.columns import choose, longest_word, shrink


def test_widths_are_taken_from_the_widest_columns() -> None:
    assert shrink([50, 6], [8, 6], 80) == [50, 6]
    assert shrink([50, 6], [8, 6], 30) == [22, 6]
    assert shrink([50, 6], [8, 6], 5) == [8, 6]
    assert shrink([50, 1, 20], [8, 1, 8], 45) == [20, 1, 20]
    assert choose({"a": 5, "b": 5, "c": 5}, 12, ["b", "c"]) == ["a", "c"]
    assert choose({"a": 5}, 1, []) == ["a"]
    assert (longest_word(["a bb", "ccc"], 80), longest_word(["x" * 50], 75)) == (3, 50)
    assert longest_word(["漢字"], 80) == 4
