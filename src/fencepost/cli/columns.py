"""Which columns of a table a terminal has room for, and how wide each of them is.

A value is broken between words, so a column needs the room of its longest word. If there is not
enough room for all, columns are left out rather than words broken. A word that takes more than two
thirds of the terminal, such as a long id, is broken: it would push out everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

GAP: Final = 2
"""Spaces between two columns."""


def choose(needed: Mapping[str, int], room: int, dispensable: Sequence[str]) -> list[str]:
    """Returns the columns that fit; those that can be left out go one by one, in their order."""
    kept = list(needed)
    for name in dispensable:
        if sum(needed[each] + GAP for each in kept) - GAP <= room:
            break
        kept.remove(name)
    return kept


def longest_word(cells: Sequence[str], room: int) -> int:
    """Returns the width on a terminal below which a column breaks words."""
    from rich.cells import cell_len  # Characters of some scripts take two columns.

    longest = max((cell_len(word) for cell in cells for word in cell.split()), default=1)
    return min(longest, most_of(room))


def most_of(room: int) -> int:
    """Returns how much of the terminal one column may claim."""
    return max(1, room * 2 // 3)


def shrink(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Returns widths that fit side by side, as far as `least` allows; the widest are cut first."""
    widths = list(wanted)
    over = sum(widths) + GAP * (len(widths) - 1) - room
    while over > 0:
        shrinkable = [n for n, width in enumerate(widths) if width > least[n]]
        if not shrinkable:
            break
        widest = max(shrinkable, key=widths.__getitem__)
        widths[widest] -= 1
        over -= 1
    return widths
