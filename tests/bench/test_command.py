"""`fencepost bench` finds its checkout, or says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.cli.bench import NoBenchError, bench, checkout

ROOT = Path(__file__).resolve().parents[2]


def test_a_folder_inside_a_checkout_is_enough() -> None:
    assert checkout(ROOT / "src" / "fencepost" / "cli") == ROOT


def test_without_a_checkout_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoBenchError, match="get a checkout of fencepost"):
        checkout(tmp_path)


def test_the_command_hands_its_arguments_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(["--list"]) == 0
    assert "growth-ids" in capfd.readouterr().out


def test_without_apache_kafka_the_other_side_is_left_out_with_a_word(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    status = bench(["--sides", "kafka", "--only", "small"])

    assert status == 2
    said = capfd.readouterr().out
    assert "left out: Apache Kafka needs java, javac, mvn" in said
    assert "nothing to measure" in said
