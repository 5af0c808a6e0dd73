"""The generated parts of the documentation are up to date; links, examples and pictures work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fencepost.coordinator.txn.states import TRANSITIONS
from tools import check_docs

ROOT = Path(__file__).resolve().parent.parent


def test_the_generated_parts_of_the_documentation_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.write_docs", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_examples_and_pictures_in_the_documentation_are_valid() -> None:
    assert list(check_docs.problems()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[there](nowhere.md)", "leads nowhere"),
        ("[there](guarantees.md#no-such-heading)", "heading that is not there"),
    ],
)
def test_a_broken_link_is_found(text: str, problem: str) -> None:
    (found,) = check_docs.broken_links(ROOT / "docs" / "start.md", text)
    assert problem in found


def test_a_valid_link_is_accepted() -> None:
    text = (
        "[a](guarantees.md#the-promise) [b](#anything) `[c](nowhere.md)` "
        "[d](https://kafka.apache.org)"
    )
    found = list(check_docs.broken_links(ROOT / "docs" / "start.md", text))
    assert found == ["the link #anything leads to a heading that is not there"]


def test_a_file_that_does_not_exist_is_found() -> None:
    page = ROOT / "docs" / "start.md"
    (found,) = check_docs.missing_files(page, "`log/log.py` and `log/no_such_module.py`")
    assert "log/no_such_module.py" in found


def test_an_example_that_does_not_compile_is_found() -> None:
    text = "```python\nprint('fine')\n```\n\n```python\nprint('not\n```\n"
    assert len(list(check_docs.broken_examples(text))) == 1


@pytest.mark.parametrize("words", ['x="120" y="9">a', 'x="60" y="9">too long', 'x="20" y="60">low'])
def test_text_cut_off_in_a_picture_is_found(tmp_path: Path, words: str) -> None:
    picture = tmp_path / "picture.svg"
    picture.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 50"><title>t</title><text '
        f"{words}</text></svg>"
    )
    (found,) = check_docs.broken_picture(picture)
    assert "do not fit" in found


def test_the_state_diagram_has_the_arrows_of_the_table() -> None:
    picture = ET.parse(ROOT / "docs" / "pictures" / "transaction-states.svg")
    drawn = {
        (before, after)
        for arrow in picture.iter("{http://www.w3.org/2000/svg}path")
        for before in arrow.get("data-from", "").split()
        for after in arrow.get("data-to", "").split()
    }
    table = {(a.name, b.name) for a, following in TRANSITIONS.items() for b in following}
    assert drawn == table


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the group docs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc="?https?:|<link[^>]*stylesheet[^>]*https?:"""
    )
    assert [page.name for page in tmp_path.rglob("*.html") if loaded.search(page.read_text())] == []
