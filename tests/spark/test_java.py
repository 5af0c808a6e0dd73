"""Java 17 or newer counts as Java: for sessions, the Makefile, and what needs Apache Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.spark import java
from tools.apache_kafka import missing_programs


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19 LTS', True),
        ('NOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g\nopenjdk version "25.0.3"', True),
        ('openjdk version "11.0.20" 2023-07-18', False),
        ('java version "1.8.0_391"', False),
        ("command not found", False),
    ],
)
def test_an_older_java_is_none(
    said: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.has_java() is counts
    assert ("java 17 or newer" in missing_programs()) is not counts
    asked = subprocess.run([sys.executable, java.__file__], check=False, env={**os.environ})
    assert (asked.returncode == 0) is counts


def test_a_java_home_without_a_java_hides_the_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for Spark, which starts the one of JAVA_HOME."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not java.has_java()
