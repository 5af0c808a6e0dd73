"""The tests of each module can be found, and `tools/check_tests.py` notices those that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import conftest
from tools import check_tests

A_FUNCTION = "def work() -> None: ...\n" + "# A long explanation.\n" * check_tests.SMALL
README = f"""
{check_tests.SPANNING}
|---|---|
| `room/{{crashes,races}}` | crashes |

{check_tests.SHOWN}
|---|---|
| `room/helper.py` | `room/test_module.py` |
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project in which everything has its place."""
    files = {
        "tests/README.md": README,
        "tests/room/test_module.py": "",
        "tests/room/test_module_later.py": "",
        "tests/test_room_together.py": "",
        "tests/room/crashes/test_kill.py": "",
        "tests/room/races/test_any.py": "",
        "src/fencepost/room/module.py": A_FUNCTION,
        "src/fencepost/room/helper.py": A_FUNCTION,
        "src/fencepost/room/names.py": "# A long explanation.\n" * 99,
        "src/fencepost/room/small.py": "def work() -> None: ...\n",
    }
    for name, text in files.items():
        write(tmp_path / name, text)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_every_test_of_this_tree_is_where_one_looks_for_it() -> None:
    assert list(check_tests.problems()) == []


@pytest.mark.parametrize("place", conftest._NOT_FAST)
def test_what_is_left_out_of_the_fast_tests_exists(place: str) -> None:
    """A file that moves would otherwise become a fast test unnoticed."""
    assert any(check_tests.ROOT.glob(f"tests/{place}*"))


def test_tests_named_after_a_module_or_package_and_listed_ones_are_accepted(tree: Path) -> None:
    assert list(check_tests.problems(tree)) == []


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("tests/room/test_other.py", "no module has this name"),
        ("tests/room/test_modules.py", "no module has this name"),
        ("src/fencepost/room/other.py", "it has no test of its own"),
    ],
)
def test_a_test_or_module_without_the_other_is_found(tree: Path, file: str, problem: str) -> None:
    write(tree / file, A_FUNCTION)
    (found,) = check_tests.problems(tree)
    assert found.startswith(f"{file}: {problem}")


@pytest.mark.parametrize("file", ["tests/room/races/test_any.py", "src/fencepost/room/helper.py"])
def test_a_row_about_something_that_is_gone_is_found(tree: Path, file: str) -> None:
    (tree / file).unlink()
    if file.startswith("tests"):
        (tree / file).parent.rmdir()
    (found,) = check_tests.problems(tree)
    assert found.startswith("tests/README.md names room/")


@pytest.mark.parametrize(
    ("table", "name"),
    [(check_tests.SPANNING, "room/races"), (check_tests.SHOWN, "room/helper.py")],
)
def test_a_name_in_two_rows_is_found(tree: Path, table: str, name: str) -> None:
    """Two branches that each extend a row leave both, one of them outdated."""
    row = f"| `{name}` | `room/test_module_later.py` |"
    page = README.replace(f"{table}\n|---|---|", f"{table}\n|---|---|\n{row}")
    write(tree / "tests/README.md", page)
    (found,) = check_tests.problems(tree)
    assert found == f"tests/README.md names {name} in 2 rows"


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no table"):
        check_tests.rows("", check_tests.SHOWN)
