"""Checks that tests can be found: part of `make check`.

The test of `src/fencepost/log/log.py` is `tests/log/test_log.py`, or, if it is split, files such as
`tests/log/test_log_model.py`; likewise for a package. What spans modules is in a folder or file
that a table of tests/README.md names with what it shows. Another table there says which tests show
the modules that have none of their own.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SPANNING: Final = "| folder or file | shows |"
"""The header of the table of tests that span modules."""
SHOWN: Final = "| modules | shown by |"
"""The header of the table of modules without a test of their own."""
SMALL: Final = 40
"""A module of so many lines, or without a function, needs no test of its own."""

Table = list[tuple[str, list[str]]]

_NAME: Final = re.compile(r"`([^`]+)`")
_BRACES: Final = re.compile(r"(.*?)\{([^}]*)\}(.*)")


def problems(root: Path = ROOT) -> Iterator[str]:
    """One line per test that is hard to find, per module whose tests are, and per outdated row."""
    source, tests = root / "src" / "fencepost", root / "tests"
    page = (tests / "README.md").read_text(encoding="utf-8")
    spanning, shown = rows(page, SPANNING), rows(page, SHOWN)
    modules = [path.relative_to(source) for path in sorted(source.rglob("*.py"))]
    yield from outdated_rows(spanning, shown, tests, modules)
    for test in sorted(tests.rglob("test_*.py")):
        name = test.relative_to(tests)
        listed = any(name.is_relative_to(place) for place, _ in spanning)
        if not listed and not mirrored(source, name):
            yield f"tests/{name}: no module has this name, and tests/README.md does not list it"
    for name in modules:
        listed = any(fnmatch(name.as_posix(), pattern) for pattern, _ in shown)
        if not listed and not has_test(tests, name) and needs_test(source / name):
            yield f"src/fencepost/{name}: it has no test of its own, and tests/README.md names none"


def outdated_rows(spanning: Table, shown: Table, tests: Path, modules: list[Path]) -> Iterator[str]:
    """Rows about what does not exist, and names that stand in two rows of a table."""
    places = [name for name, _ in spanning]
    for place in chain(places, *(names for _, names in shown)):
        if not (tests / place).exists():
            yield f"tests/README.md names {place}, which does not exist"
    for pattern, _ in shown:
        if not any(fnmatch(name.as_posix(), pattern) for name in modules):
            yield f"tests/README.md names {pattern}, which no module is"
    for table in (spanning, shown):
        for name, times in Counter(name for name, _ in table).items():
            if times > 1:
                yield f"tests/README.md names {name} in {times} rows"


def rows(page: str, header: str) -> Table:
    """The table with this header: each name of a first cell, and the names of the second."""
    _, found, after = page.partition(f"{header}\n")
    if not found:
        raise ValueError(f"there is no table {header}")
    table: Table = []
    for line in after.partition("\n\n")[0].splitlines()[1:]:
        _, names, what, _ = line.split("|")
        for name in _NAME.findall(names):
            table += [(each, _NAME.findall(what)) for each in expanded(name)]
    return table


def expanded(name: str) -> list[str]:
    """`log/{roll,swap}.py` as `log/roll.py` and `log/swap.py`."""
    if not (braces := _BRACES.fullmatch(name)):
        return [name]
    before, choices, after = braces.groups()
    return [each for choice in choices.split(",") for each in expanded(before + choice + after)]


def mirrored(source: Path, test: Path) -> bool:
    """Whether the test has the name of a module or package, perhaps with an aspect after it."""
    words = test.stem.split("_")[1:]
    names = [source / test.parent / "_".join(words[:count]) for count in range(1, len(words) + 1)]
    return any(name.with_suffix(".py").exists() or name.is_dir() for name in names)


def has_test(tests: Path, module: Path) -> bool:
    """Whether there is a test with the name of the module."""
    folder = tests / module.parent
    return (folder / f"test_{module.stem}.py").exists() or any(
        folder.glob(f"test_{module.stem}_*.py")
    )


def needs_test(module: Path) -> bool:
    """False for small modules, and for those that only declare or import."""
    text = module.read_text(encoding="utf-8")
    return (
        module.name != "__init__.py"
        and text.count("\n") > SMALL
        and any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(ast.parse(text))
        )
    )


def main() -> int:
    """The exit code: 1 if there is a problem."""
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
