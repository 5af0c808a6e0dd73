"""What would be published: the page on PyPI, compiled wheels, and the checks of a release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.check_release import (
    metadata_of,
    problems_of_sdist,
    problems_of_wheel,
    project,
    relative_links,
)
from tools.compile_hot_path import HOT_PATH

pytest.importorskip("hatchling", reason="hatchling builds the wheel")

from tools.readme_hook import WHERE_THE_PAGES_ARE, for_pypi

ROOT = Path(__file__).resolve().parents[1]

# -- the page on PyPI


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("See [operations](docs/operations.md#a-b).", "See operations."),
        ("- [Start](./docs/start.md): ten minutes", "- Start: ten minutes"),
        ("![A run of the demo.](docs/demo.svg)", "A run of the demo."),
        (
            "[`make`](Makefile) and [Kafka](https://kafka.apache.org)",
            "`make` and [Kafka](https://kafka.apache.org)",
        ),
        ("[two\nlines](SECURITY.md)", "two\nlines"),
    ],
)
def test_a_link_to_a_file_becomes_its_text_on_pypi(written: str, shown: str) -> None:
    assert for_pypi(written) == f"{shown}\n\n{WHERE_THE_PAGES_ARE}\n"


@pytest.mark.parametrize(
    "text",
    [
        "[Kafka](https://kafka.apache.org), [below](#on-spark), [us](mailto:a@example.org)",
        "`table[1](row)` and ``a ` [b](c)``",
        "```python\nrows[0](docs/start.md)\n```\n",
        "~~~\n[a](b)\n~~~\n",
        "no link at all [1] (2)",
    ],
)
def test_code_and_links_to_other_sites_stay_on_pypi(text: str) -> None:
    assert for_pypi(text) == text


def test_the_readme_has_no_relative_link_on_pypi() -> None:
    markdown = pytest.importorskip("markdown", reason="the group docs is not installed")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    extensions = ["fenced_code", "tables"]
    assert relative_links(markdown.markdown(readme, extensions=extensions))
    page = markdown.markdown(for_pypi(readme), extensions=extensions)
    assert relative_links(page) == []
    assert page.count("<h2>") == markdown.markdown(readme, extensions=extensions).count("<h2>")


# -- wheels


def build(target: Path, compiled: Path | None) -> Path:
    """A wheel of this checkout, by the hooks that a release uses."""
    environment = {**os.environ, "FENCEPOST_SRC": str(compiled or "")}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def stand_ins(folder: Path, modules: tuple[str, ...] = HOT_PATH) -> Path:
    """A folder like that of `make compile`; the modules are empty."""
    suffix = ".cpython-311-x86_64-linux-gnu.so"
    for module in modules:
        path = folder / "fencepost" / module.replace(".py", suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / f"1234abcd__mypyc{suffix}").touch()
    return folder


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pure"), None)


def test_a_wheel_with_all_compiled_modules_is_found_right(tmp_path: Path) -> None:
    wheel = build(tmp_path / "dist", stand_ins(tmp_path / "compiled"))
    assert list(problems_of_wheel(wheel, compiled=True)) == []
    assert "py3-none-any" not in wheel.name


def test_a_module_that_was_not_compiled_is_reported(tmp_path: Path) -> None:
    wheel = build(tmp_path / "dist", stand_ins(tmp_path / "compiled", HOT_PATH[1:]))
    assert list(problems_of_wheel(wheel, compiled=True)) == [
        f"fencepost/{HOT_PATH[0]} is not compiled"
    ]


def test_a_pure_wheel_is_not_taken_for_a_compiled_one(pure: Path) -> None:
    assert "its name says that it is pure" in list(problems_of_wheel(pure, compiled=True))


def changed(wheel: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A copy in which each file is what `change` makes of it; None leaves it out."""
    copy = target / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(copy, "w") as made:
        for name in source.namelist():
            content = change(name, source.read(name))
            if content is not None:
                made.writestr(name, content)
    return copy


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ("fencepost/py.typed", "it lacks fencepost/py.typed"),
        ("fencepost/log/log.py", "it lacks fencepost/log/log.py"),
        ("licenses/LICENSE", "it lacks the licence"),
        ("entry_points.txt", "its entry points lack pytest11"),
    ],
)
def test_a_missing_file_is_reported(pure: Path, tmp_path: Path, ending: str, problem: str) -> None:
    wheel = changed(pure, tmp_path, lambda name, data: None if name.endswith(ending) else data)
    found = list(problems_of_wheel(wheel, compiled=False))
    assert any(line.startswith(problem) for line in found), found


@pytest.mark.parametrize("name", ["tests/test_start.py", "fencepost/log/log.c", "tools/mutants.py"])
def test_a_file_that_does_not_belong_to_the_package_is_reported(
    pure: Path, tmp_path: Path, name: str
) -> None:
    wheel = changed(pure, tmp_path, lambda _, data: data)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(name, "")
    assert list(problems_of_wheel(wheel, compiled=False)) == [f"it has {name}, which is not in src"]


def test_a_development_tool_as_an_extra_is_reported(pure: Path, tmp_path: Path) -> None:
    def with_extra(name: str, data: bytes) -> bytes:
        if not name.endswith("METADATA"):
            return data
        return data.replace(b"Provides-Extra: java", b"Provides-Extra: java\nProvides-Extra: dev")

    wheel = changed(pure, tmp_path, with_extra)
    (found,) = problems_of_wheel(wheel, compiled=False)
    assert found.startswith(
        "its extras are ['connect', 'dev', 'java', 'postgres', 're2', 'secure-tests', 'spark']"
    )


def test_the_description_of_the_wheel_is_the_readme_for_pypi(pure: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert str(metadata_of(pure).get_payload()).strip() == for_pypi(readme).strip()


# -- the source distribution


def test_a_source_distribution_with_too_little_or_too_much_is_reported(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with tarfile.open(tmp_path / "fencepost.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "README.md", "fencepost-0.1.0/README.md")
        archive.add(tmp_path / "notes.txt", "fencepost-0.1.0/notes.txt")
    found = list(problems_of_sdist(tmp_path / "fencepost.tar.gz"))
    assert "it lacks tools/readme_hook.py" in found
    assert "it lacks README.md" not in found
    if (ROOT / ".git").exists():
        assert "it has notes.txt, which is not committed" in found


# -- what pyproject.toml promises


def name_of(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[._-]+", "-", name).lower()


def test_each_group_and_extra_is_pinned() -> None:
    tables = project()
    groups = tables["dependency-groups"].values()
    extras = tables["project"]["optional-dependencies"].values()
    wanted = {
        name_of(requirement)
        for requirements in (*groups, *extras, tables["project"]["dependencies"])
        for requirement in requirements
        if isinstance(requirement, str)
    }
    pinned = {
        name_of(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    # pip has --group since 25.1; the pip of a new environment may be older.
    assert wanted - {"fencepost"} | {"pip"} <= pinned


def test_the_tried_pythons_are_those_of_the_metadata() -> None:
    page = (ROOT / "docs" / "reference" / "pythons.md").read_text()
    named = [
        line.rpartition(" ")[2]
        for line in project()["project"]["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    for version in named:
        assert f"| {version}." in page
