"""The list: what is changed where, why that matters, and which tests must notice."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SOURCE: Final = ROOT / "src"
LIST: Final = Path(__file__).with_name("list.toml")


class StaleMutantError(Exception):
    """The list and the source no longer agree."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    file: str
    """Below `src/fencepost`."""
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
        """The one line that changes, before and after; the rest of `before` says where it is."""
        old, new = self.before.splitlines(), self.after.splitlines()
        if len(old) != len(new):
            raise StaleMutantError(f"{self.name}: one line becomes one line")
        changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        if len(changed) != 1:
            raise StaleMutantError(f"{self.name}: {len(changed)} lines change, not one")
        return changed[0][0].strip(), changed[0][1].strip()

    def apply(self, source: Path) -> str:
        """The text of the file with the bug in it; StaleMutantError when its place is not there, or there twice."""
        text = (source / self.path).read_text(encoding="utf-8")
        found = text.count(self.before)
        if found != 1:
            raise StaleMutantError(
                f"{self.name}: the text to change occurs {found} times in {self.path}, not once. "
                "Bring the list up to date with the source."
            )
        return text.replace(self.before, self.after)


def load_mutants() -> list[Mutant]:
    """All of them, in the order of the list."""
    with LIST.open("rb") as file:
        entries = tomllib.load(file)["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"].split())}) for entry in entries]
