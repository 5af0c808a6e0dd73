"""Reads a pattern in RE2's syntax, from its beginning to its end, into a program of `patterns.py`.

Greed and groups are read and have no effect there. What RE2 refuses is refused: references back,
looking around, atomic groups, repetitions of repetitions, escapes that mean nothing.
"""

from __future__ import annotations

import re
import string
from typing import Final, NamedTuple

from fencepost.coordinator.txn.patterns import (
    END_OF_LINE,
    LOOKS,
    START_OF_LINE,
    Chars,
    Consume,
    FoldedChars,
    Look,
    Pattern,
    PatternError,
    Program,
    check_size,
    either,
    repeated,
)

MAX_REPETITIONS: Final = 1_000
"""RE2's own bound."""
MAX_DEPTH: Final = 100
"""Of groups within each other."""

ANY: Final = Chars(negated=True)
NOT_A_LINES_END: Final = Chars((("\n", "\n"),), negated=True)
DIGITS: Final = Chars((("0", "9"),))
SPACES: Final = Chars((("\t", "\n"), ("\f", "\r"), (" ", " ")))
WORDS: Final = Chars((("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")))
BY_LETTER: Final = {"d": DIGITS, "s": SPACES, "w": WORDS}
BY_NAME: Final = {
    "alnum": Chars((("0", "9"), ("A", "Z"), ("a", "z"))),
    "alpha": Chars((("A", "Z"), ("a", "z"))),
    "ascii": Chars((("\0", "\x7f"),)),
    "blank": Chars((("\t", "\t"), (" ", " "))),
    "cntrl": Chars((("\0", "\x1f"), ("\x7f", "\x7f"))),
    "digit": DIGITS,
    "graph": Chars((("!", "~"),)),
    "lower": Chars((("a", "z"),)),
    "print": Chars(((" ", "~"),)),
    "punct": Chars((("!", "/"), (":", "@"), ("[", "`"), ("{", "~"))),
    "space": Chars((("\t", "\r"), (" ", " "))),
    "upper": Chars((("A", "Z"),)),
    "word": WORDS,
    "xdigit": Chars((("0", "9"), ("A", "F"), ("a", "f"))),
}
SUBDIVISIONS: Final = {
    "C": "cfos",
    "L": "lmotu",
    "M": "cen",
    "N": "dlo",
    "P": "cdefios",
    "S": "ckmo",
    "Z": "lps",
}
CATEGORIES: Final = frozenset(
    name + letter for name, letters in SUBDIVISIONS.items() for letter in ("", *letters)
)
"""Of Unicode: L, Lu and so on."""
CONTROLS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Flags(NamedTuple):
    """What (?ims) turns on; U turns greed round, which makes no difference here."""

    ignore_case: bool = False
    many_lines: bool = False
    dot_takes_all: bool = False


FLAG_LETTERS: Final = {"i": "ignore_case", "m": "many_lines", "s": "dot_takes_all"}
REPETITION: Final = re.compile(r"\{(\d+)(,(\d*))?\}", re.ASCII)
GROUP: Final = re.compile(
    r"\?(?:P?<(?P<name>\w+)>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))", re.ASCII
)
NAMED_CLASS: Final = re.compile(r"\[:(\^?)(\w+):\]")
UNICODE_CLASS: Final = re.compile(r"([pP])(?:\{(\^?)(\w+)\}|(\w))")
HEXADECIMAL: Final = re.compile(r"x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
OCTAL: Final = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")


def compile_pattern(text: str) -> Pattern:
    """PatternError for what RE2 refuses."""
    return Pattern(Parser(text).parse())


class Parser:
    """Reads a pattern from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> Program:
        program = self._alternatives(Flags())
        if self._position < len(self._text):
            raise self._error("an end of a group that has no beginning")
        return program

    def _error(self, problem: str) -> PatternError:
        return PatternError(f"{problem} at {self._position} of {self._text!r}")

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self, what: str) -> bool:
        if self._text.startswith(what, self._position):
            self._position += len(what)
            return True
        return False

    def _match(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        found = expected.match(self._text, self._position)
        if found is not None:
            self._position = found.end()
        return found

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("an end too soon")
        self._position += 1
        return char

    # -- what a pattern is made of
    # --------------------------------------------------------------------------

    def _alternatives(self, flags: Flags) -> Program:
        """Up to the end of the group.

        Flags that are set within an alternative hold for those after it, too.
        """
        program: Program = ()
        alternatives = []
        while (char := self._peek()) not in ("", ")"):
            if char == "|":
                self._position += 1
                alternatives.append(program)
                program = ()
            elif self._take(r"\Q"):
                program = check_size(program + self._quoted(flags))
            elif self._text.startswith("(?", self._position):
                piece, flags = self._special_group(flags)
                program = check_size(program + self._repeated(piece))
            else:
                program = check_size(program + self._repeated(self._atom(flags)))
        for earlier in reversed(alternatives):
            program = check_size(either(earlier, program))
        return program

    def _special_group(self, flags: Flags) -> tuple[Program | None, Flags]:
        """(?:…), (?<name>…), (?flags:…), or (?flags), which is nothing by itself."""
        self._position += 1
        found = self._match(GROUP)
        if found is None:
            raise self._error("a group of an unknown kind")
        if found["name"] is not None:
            if found["name"] in self._names:
                raise self._error("a name that another group has")
            self._names.add(found["name"])
            return self._rest_of_group(flags), flags
        on, _, off = found["flags"].partition("-")
        wanted = dict.fromkeys(on, True) | dict.fromkeys(off, False)
        wanted.pop("U", None)
        inner = flags._replace(**{FLAG_LETTERS[letter]: wanted[letter] for letter in wanted})
        if found["end"] == ")":
            return None, inner
        return self._rest_of_group(inner), flags

    def _rest_of_group(self, flags: Flags) -> Program:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("too many groups within each other")
        program = self._alternatives(flags)
        self._depth -= 1
        if not self._take(")"):
            raise self._error("a group without an end")
        return program

    def _atom(self, flags: Flags) -> Program:
        if self._repetition() is not None:
            raise self._error("a repetition of nothing")
        char = self._next()
        if char == "(":
            return self._rest_of_group(flags)
        if char == "[":
            return self._consume(self._class(), flags)
        if char == ".":
            return (Consume(ANY if flags.dot_takes_all else NOT_A_LINES_END),)
        if char == "^":
            return (START_OF_LINE if flags.many_lines else Look(LOOKS["A"]),)
        if char == "$":
            return (END_OF_LINE if flags.many_lines else Look(LOOKS["z"]),)
        if char == "\\":
            return self._escape(flags)
        return self._consume(Chars(((char, char),)), flags)

    def _consume(self, chars: Chars, flags: Flags) -> Program:
        return (Consume(FoldedChars(*chars) if flags.ignore_case else chars),)

    # -- repetitions
    # ----------------------------------------------------------------------------------------

    def _repeated(self, program: Program | None) -> Program:
        """With the repetition behind it, if there is one; a second one is an error, as in RE2."""
        times = self._repetition()
        if program is None:
            if times is not None:
                raise self._error("a repetition of nothing")
            return ()
        if times is None:
            return program
        self._take("?")  # Without greed, which makes no difference.
        if self._repetition() is not None:
            raise self._error("a repetition of a repetition")
        return repeated(program, *times)

    def _repetition(self) -> tuple[int, int | None] | None:
        if (char := self._peek()) in ("*", "+", "?"):
            self._position += 1
            return int(char == "+"), 1 if char == "?" else None
        found = self._match(REPETITION)
        if found is None:
            return None
        # As floats, because they may have any number of digits.
        least = float(found[1])
        most = least if found[2] is None else float(found[3]) if found[3] else None
        if max(least, most or 0) > MAX_REPETITIONS or (most is not None and most < least):
            raise self._error("a repetition that is too often")
        return int(least), None if most is None else int(most)

    # -- characters
    # -----------------------------------------------------------------------------------------

    def _quoted(self, flags: Flags) -> Program:
        """Everything as it stands up to its end; what is repeated behind it is the last character."""
        quoted, _, _ = self._text[self._position :].partition(r"\E")
        self._position += len(quoted)
        self._take(r"\E")
        program = tuple(self._consume(Chars(((char, char),)), flags)[0] for char in quoted)
        return program[:-1] + self._repeated(program[-1:] or None)

    def _escape(self, flags: Flags) -> Program:
        if (letter := self._peek()) in LOOKS and letter:
            self._position += 1
            return (Look(LOOKS[letter]),)
        return self._consume(self._escaped_chars(), flags)

    def _escaped_chars(self) -> Chars:
        """A class or a single character, behind a backslash."""
        letter = self._peek()
        if letter.lower() in BY_LETTER and letter:
            self._position += 1
            chars = BY_LETTER[letter.lower()]
            return chars if letter.islower() else chars.negate()
        if found := self._match(UNICODE_CLASS):
            name = found[3] or found[4]
            if name not in CATEGORIES and name != "Any":
                raise self._error(f"an unknown class {name}")
            chars = ANY if name == "Any" else Chars(category=name)
            return chars.negate() if (found[1] == "P") != (found[2] == "^") else chars
        char = self._escaped_char()
        return Chars(((char, char),))

    def _escaped_char(self) -> str:
        if found := self._match(HEXADECIMAL):
            code = int(found[1] or found[2], 16)
            if code > 0x10FFFF:
                raise self._error("no such character")
            return chr(code)
        if found := self._match(OCTAL):
            return chr(int(found[0], 8))
        char = self._next()
        if char in CONTROLS:
            return CONTROLS[char]
        if char in string.punctuation:
            return char
        raise self._error("an unknown escape")

    def _class(self) -> Chars:
        """[…] behind its first bracket."""
        negated = self._take("^")
        parts: list[Chars] = []
        first = True
        while first or self._peek() != "]":
            parts.append(self._class_part())
            first = False
        self._position += 1
        return Chars(parts=tuple(parts), negated=negated)

    def _class_part(self) -> Chars:
        if found := self._match(NAMED_CLASS):
            if found[2] not in BY_NAME:
                raise self._error(f"an unknown class {found[2]}")
            return BY_NAME[found[2]].negate() if found[1] else BY_NAME[found[2]]
        low = self._class_char()
        if isinstance(low, Chars):
            return low
        high: Chars | str = low
        if self._peek() == "-" and self._text[self._position + 1 : self._position + 2] != "]":
            self._position += 1
            high = self._class_char()
        if isinstance(high, Chars) or high < low:
            raise self._error("a range that is none")
        return Chars(((low, high),))

    def _class_char(self) -> Chars | str:
        char = self._next()
        if char != "\\":
            return char
        chars = self._escaped_chars()
        if chars.category or chars.negated or len(chars.ranges) > 1:
            return chars
        ((low, high),) = chars.ranges
        return low if low == high else chars
