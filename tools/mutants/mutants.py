"""The list: each change, why it matters, and which tests must notice it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SOURCE: Final = ROOT / "src"
LIST: Final = Path(__file__).with_name("list.toml")


class StaleMutantError(Exception):
    """The list does not match the source."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    file: str
    """The path below `src/fencepost`."""
    before: str
    after: str
    why: str
    tests: tuple[str, ...]
    """Arguments for pytest."""

    @property
    def path(self) -> str:
        return f"fencepost/{self.file}"

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]

    @property
    def change(self) -> tuple[str, str]:
        """The changing line, before and after; the other lines of `before` locate it."""
        old, new = self.before.splitlines(), self.after.splitlines()
        if len(old) != len(new):
            raise StaleMutantError(f"{self.name}: one line becomes one line")
        changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        if len(changed) != 1:
            raise StaleMutantError(f"{self.name}: {len(changed)} lines change, not one")
        return changed[0][0].strip(), changed[0][1].strip()

    def apply(self, source: Path) -> str:
        """The source with the bug; StaleMutantError unless its place occurs exactly once."""
        text = (source / self.path).read_text(encoding="utf-8")
        found = text.count(self.before)
        if found != 1:
            raise StaleMutantError(
                f"{self.name}: the text to change occurs {found} times in {self.path}, not once. "
                "Bring the list up to date with the source."
            )
        return text.replace(self.before, self.after)


def load_mutants() -> list[Mutant]:
    """All bugs, in the order of the list."""
    with LIST.open("rb") as file:
        entries = tomllib.load(file)["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"].split())}) for entry in entries]
