r"""Patterns of transactional ids (KIP-1152) in RE2's syntax, matched in time that grows with the id alone.

Theory of operation ------------------- Kafka matches with RE2, which never goes back: whoever sends
a pattern cannot make a broker think for ever. Python's own `re` can be made to, with one loop that
serves everybody standing still meanwhile, and RE2's wheel is not to be had for every platform that
this package runs on. But all that is asked here is whether a whole id matches, so groups need no
positions and greed makes no difference; what is left of a regular expression is small.

A pattern is parsed into a program of four instructions, in which several threads run side by side
over the id, a character at a time (Thompson). Where all of them stand after a character depends on
where they stood before it, on that character and on the kind of the one before; such steps are
remembered, so an id like those seen before costs a look-up per character. A pattern that leads to
too many places to remember forgets them and goes on.

What RE2 has and this has not: scripts (`\p{Greek}`), of which Python knows nothing. A program is
bounded.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_INSTRUCTIONS: Final = 2_000
MAX_STEPS_REMEMBERED: Final = 10_000


class PatternError(ValueError):
    """Not a pattern of RE2, or one that is too large; the message says where."""


# -- sets of characters
# ---------------------------------------------------------------------------------------


class Chars(NamedTuple):
    """A set of characters: ranges, a category of Unicode, other sets; negated, all that are in none of them."""

    ranges: tuple[tuple[str, str], ...] = ()
    category: str | None = None
    parts: tuple[Chars, ...] = ()
    negated: bool = False

    def __call__(self, char: str) -> bool:
        return self._holds(char) != self.negated

    def _holds(self, char: str) -> bool:
        if self.category is not None and unicodedata.category(char).startswith(self.category):
            return True
        return any(low <= char <= high for low, high in self.ranges) or any(
            part(char) for part in self.parts
        )

    def negate(self) -> Chars:
        return self._replace(negated=not self.negated)


class FoldedChars(Chars):
    """The same whatever the case; what is negated is the folded set."""

    __slots__ = ()

    def __call__(self, char: str) -> bool:
        cases = {char, char.lower(), char.upper()}
        return any(self._holds(case) for case in cases if len(case) == 1) != self.negated


# -- programs
# -------------------------------------------------------------------------------------------------


class Consume(NamedTuple):
    """Goes on if the next character is one of these."""

    accepts: Chars


class Fork(NamedTuple):
    """Goes on in both places; each is relative to this one."""

    first: int
    second: int


class Look(NamedTuple):
    """Goes on if the place between two characters is of this kind."""

    holds: Callable[[str, str], bool]


class Goto(NamedTuple):
    """Goes on elsewhere, relative to this one."""

    offset: int


Program = tuple["Consume | Fork | Look | Goto", ...]


class Place:
    """Where all threads stand, and where they will stand after the characters that were met here so far."""

    __slots__ = ("before", "following", "is_match", "threads")

    def __init__(self, threads: frozenset[int], before: str, *, is_match: bool) -> None:
        self.threads = threads
        self.before = before
        self.is_match = is_match
        self.following: dict[str, Place] = {}


class Pattern:
    """A program and the places that it has been to."""

    __slots__ = ("_places", "_program", "_start", "_steps")

    def __init__(self, program: Program) -> None:
        self._program = program
        self._forget()

    def _forget(self) -> None:
        self._places: dict[tuple[frozenset[int], str], Place] = {}
        self._steps = 0
        self._start = self._place(frozenset((0,)), "")

    def fullmatch(self, text: str) -> bool:
        """Whether the whole text matches."""
        place = self._start
        for char in text:
            found = place.following.get(char)
            place = self._step(place, char) if found is None else found
            if not place.threads:
                return False
        return place.is_match

    def _step(self, place: Place, char: str) -> Place:
        if self._steps == MAX_STEPS_REMEMBERED:
            self._forget()
        self._steps += 1
        program = self._program
        threads = frozenset(
            number + 1
            for number in self._reach(place.threads, place.before, char)
            if number < len(program)
            and isinstance(found := program[number], Consume)
            and found.accepts(char)
        )
        place.following[char] = following = self._place(threads, kind_of(char))
        return following

    def _place(self, threads: frozenset[int], before: str) -> Place:
        key = (threads, before)
        if key not in self._places:
            is_match = len(self._program) in self._reach(threads, before, "")
            self._places[key] = Place(threads, before, is_match=is_match)
        return self._places[key]

    def _reach(self, threads: Iterable[int], before: str, after: str) -> set[int]:
        """Every instruction that can be got to without a character, the end of the program included."""
        reached: set[int] = set()
        waiting = list(threads)
        while waiting:
            number = waiting.pop()
            if number in reached:
                continue
            reached.add(number)
            found = self._program[number] if number < len(self._program) else None
            if isinstance(found, Fork):
                waiting += (number + found.first, number + found.second)
            elif isinstance(found, Goto):
                waiting.append(number + found.offset)
            elif isinstance(found, Look) and found.holds(before, after):
                waiting.append(number + 1)
        return reached


def kind_of(char: str) -> str:
    """One character for all that are alike to whoever looks at a place: none, a line's end, a word's letter, others."""
    if char in ("", "\n"):
        return char
    return "w" if is_word(char) else "-"


def is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


def at_word_boundary(before: str, after: str) -> bool:
    return (before != "" and is_word(before)) != (after != "" and is_word(after))


LOOKS: Final[dict[str, Callable[[str, str], bool]]] = {
    "A": lambda before, after: before == "",
    "z": lambda before, after: after == "",
    "b": at_word_boundary,
    "B": lambda before, after: not at_word_boundary(before, after),
}
START_OF_LINE: Final = Look(lambda before, after: before in ("", "\n"))
END_OF_LINE: Final = Look(lambda before, after: after in ("", "\n"))


def repeated(program: Program, least: int, most: int | None) -> Program:
    """The program so many times; None for as often as it likes."""
    size = len(program)
    if size * max(least, most or 1) > MAX_INSTRUCTIONS:
        raise PatternError("the pattern is too large")
    if most is None:
        loop: Program = (Fork(1, size + 2), *program, Goto(-size - 1))
        return program * least + loop
    optional: Program = ()
    for _ in range(most - least):
        optional = (Fork(1, size + len(optional) + 1), *program, *optional)
    return program * least + optional


def either(first: Program, second: Program) -> Program:
    return (Fork(1, len(first) + 2), *first, Goto(len(second) + 1), *second)


def check_size(program: Program) -> Program:
    if len(program) > MAX_INSTRUCTIONS:
        raise PatternError("the pattern is too large")
    return program
