"""Metrics and the JSON log of `fencepost serve` as a real process."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.broker.metrics.scraped import MeasuredStage, scrape
from tests.broker.raw import RawClient
from tests.broker.requests import batch_of, create_topic, produce
from tests.broker.test_process import refusal
from tests.transactions.wire import WireProducer
from tools.fencepost_process import ROOT, FencepostProcess

URL = re.compile(r"metrics at (http://[\d.:]+)/metrics")
ANY = "127.0.0.1:0"


def json_lines(process: FencepostProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.process.output.splitlines() if line[:1] == "{"]


def test_a_start_after_a_crash_says_what_was_recovered_and_cut(tmp_path: Path) -> None:
    first = FencepostProcess(tmp_path)
    with RawClient(first.bootstrap_servers) as client:
        create_topic(client, "torn")
        produce(client, "torn", batch_of(b"kept"))
        WireProducer(client, "a").initialise().send("torn", b"open")
    first.kill()
    log = tmp_path / "torn-0" / "00000000000000000000.log"
    with log.open("ab") as file:
        file.write(bytes(batch_of(b"half", base_offset=2))[:40])
    with FencepostProcess(tmp_path, options=["--log-format", "json", "--metrics", ANY]) as second:
        lines = json_lines(second)
        (cut,) = [line for line in lines if "cut_bytes" in line and "event" not in line]
        assert (cut["level"], cut["partition"], cut["cut_bytes"]) == ("WARNING", "torn-0", 40)
        (summary,) = [line for line in lines if line.get("event") == "recovered"]
        assert summary["cut_partitions"] == 1
        assert summary["cut_bytes"] == 40
        assert summary["scanned_bytes"] > 40
        assert summary["open_transactions"] == 1
        assert summary["broker"] == 1
        found = scrape(URL.findall(second.process.output)[0])
        assert found["fencepost_recovery_cut_bytes"] == 40
        assert found["fencepost_transactions_open"] == 1
    assert all(line["level"] and line["time"] and line["logger"] for line in lines)


def test_a_clean_start_has_nothing_to_report(tmp_path: Path) -> None:
    with FencepostProcess(tmp_path):
        pass
    with FencepostProcess(tmp_path) as again:
        assert "recovered" not in again.process.output


def test_metrics_are_off_and_their_library_is_not_imported_unless_asked(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from fencepost.broker.process import run\n"
        "import os, signal\n"
        "def stop(address):\n"
        "    print([m for m in sys.modules if m.startswith('prometheus')])\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        f"run(listen='{ANY}', data={str(tmp_path / 'data')!r}, announce=stop)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout == "[]\n"


def test_a_metrics_port_that_is_taken_is_a_sentence_and_leaves_no_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refusal(data, "--metrics", address)
        assert line.startswith(f"fencepost: Metrics cannot be served at http://{address}: ")
        assert "Choose another address with --metrics" in line
        several = refusal(data, "--metrics", address, "--brokers", "2")
        assert "Metrics cannot be served" in several
    assert not data.exists()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", ":0"])
def test_metrics_for_other_machines_need_permission(tmp_path: Path, address: str) -> None:
    assert "--allow-remote" in refusal(tmp_path / "data", "--metrics", address)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "http://a:1"])
def test_an_address_that_cannot_be_is_refused_in_its_own_terms(
    tmp_path: Path, address: str
) -> None:
    assert "--metrics is" in refusal(tmp_path / "data", "--metrics", address)


def test_too_few_ports_for_all_brokers_are_a_sentence(tmp_path: Path) -> None:
    line = refusal(tmp_path / "data", "--metrics", "127.0.0.1:65534", "--brokers", "3")
    assert "--metrics needs ports 65534 to 65537" in line


def test_a_broker_is_not_ready_before_its_start_and_after_its_stop() -> None:
    stage = MeasuredStage()
    assert stage.node.why_not_ready() == "the logs are being recovered; 0 are open"
    stage.start()
    assert stage.node.why_not_ready() is None
    assert stage.scrape()["fencepost_ready"] == 1
    stage.stop()
    assert stage.node.why_not_ready() == "the broker is stopping"


def test_a_coordinator_that_is_loading_makes_the_broker_unready() -> None:
    with MeasuredStage() as stage:
        create_topic(stage, "refunds")
        WireProducer(stage, "a").initialise().send("refunds", b"x")
        loader = stage.node.transactions._loading

        class Loading:
            is_refused = False

            def cancel(self) -> None:
                pass

        loader[0] = Loading()  # type: ignore[assignment]
        assert stage.node.why_not_ready() == "the transaction coordinator is loading its logs"
        assert stage.scrape()["fencepost_ready"] == 0
        del loader[0]


def test_a_start_lets_the_loop_answer_while_it_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.broker.turns.TURN_SECONDS", 0.0)
    stage = MeasuredStage().start()
    for number in range(5):
        create_topic(stage, f"t{number}", partitions=10)
        produce(stage, f"t{number}", batch_of(b"x"))
    stage.kill()
    again = MeasuredStage(disk=stage.disk)
    reasons: set[str | None] = set()

    def look() -> None:
        reasons.add(again.node.why_not_ready())
        if again.node.why_not_ready() is not None:
            again.loop.call_soon(look)

    again.loop.call_soon(look)
    again.start()
    again.settle()
    assert len(reasons) > 10  # The number of open logs grew while it was asked.
    assert again.node.why_not_ready() is None
    again.stop()
