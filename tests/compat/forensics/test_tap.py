"""The tap before Apache Kafka.

The Java client sees through it what it sees without it. Its steps need a fresh broker, so what it
should see comes from a fencepost broker: test_java_client.py compares the two.

Logins pass through: a client speaks SASL to the tap, the tap TLS to the broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost.forensics.tap.swimlane import show
from fencepost.forensics.tap.swimlane.conclusion import Outcome, conclude
from tests.compat.test_client_security import PASSWORD, Secured, _write_and_read, secured
from tools.apache_kafka import ApacheKafka
from tools.fencepost_process import FencepostProcess
from tools.java_tools import JavaTools
from tools.tap_process import TapProcess

__all__ = ["secured"]

STEPS = (
    "admin: the cluster",
    "records: a million bytes",
    "groups: every record once",
    "groups: two members with CooperativeStickyAssignor",
    "transactions: committed",
    "transactions: with offsets",
    "transactions: the second of two producers wins",
)
EXERCISE_SECONDS = 200.0


@pytest.fixture(scope="module")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TapProcess]:
    folder = tmp_path_factory.mktemp("tap")
    with (
        ApacheKafka(folder / "data") as kafka,
        TapProcess(kafka.bootstrap_servers, folder / "trace.jsonl") as running,
    ):
        yield running


def transcript(tools: JavaTools, servers: str) -> dict[str, Any]:
    result = tools.run("Exercise", servers, *STEPS, seconds=EXERCISE_SECONDS)
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in result.lines]
    return {line["step"]: (line.get("saw"), line.get("raised")) for line in lines}


@pytest.mark.timeout(450)
def test_the_java_client_sees_the_same_through_the_tap(
    tap: TapProcess, tools: JavaTools, tmp_path: Path
) -> None:
    with FencepostProcess(tmp_path / "data") as broker:
        direct = transcript(tools, broker.bootstrap_servers)
    assert sorted(direct) == sorted(STEPS)
    assert transcript(tools, tap.bootstrap_servers) == direct
    lines = tap.lines()
    apis = {line.get("api") for line in lines if line["kind"] == "request"}
    assert {"InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn", "JoinGroup"} <= apis
    undecoded = {line["api"] for line in lines if line.get("decoded") is False}
    assert undecoded <= {"GetTelemetrySubscriptions", "PushTelemetry", "ConsumerGroupHeartbeat"}
    opened = [line for line in lines if line.get("event") == "opened"]
    assert len({line["address"] for line in opened}) == 1


@pytest.mark.timeout(450)
def test_a_fenced_java_producer_is_explained(tap: TapProcess) -> None:
    """After the steps above: the second of two producers has fenced the first."""
    trace = show.read(str(tap.out), None, None)
    found = [conclude(show.story(trace, row["transactional_id"]))[0] for row in show.ids(trace)]
    causes = [str(each.by.value) for each in found if each.outcome is Outcome.FENCED]
    assert any(cause.startswith("a newer instance") for cause in causes)


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [("SCRAM-SHA-512", "scram-user", "scram-secret"), ("PLAIN", "alice", PASSWORD)],
)
def test_a_login_passes_and_is_hidden(
    secured: Secured, topic: str, tmp_path: Path, mechanism: str, user: str, password: str
) -> None:
    config = tmp_path / "cluster.properties"
    config.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.folder / 'ca.pem'}\nsasl.mechanism={mechanism}\n"
    )
    out = tmp_path / "trace.jsonl"
    with TapProcess(secured.at("SASL_SSL"), out, "--config", str(config), "--bytes") as tap:
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
        _write_and_read(tap.bootstrap_servers, options, topic)
        tap.wait_for(lambda line: line.get("api") == "EndTxn" and line["kind"] == "reply")
        logins = [line for line in tap.lines() if line.get("api") == "SaslAuthenticate"]
        assert logins
        assert {line["body"].get("auth_bytes", "hidden") for line in logins} == {"hidden"}
        written = out.read_text() + tap.process.output
    for secret in (password, user):
        assert secret not in written
        assert json.dumps(secret)[1:-1] not in written
        assert secret.encode().hex() not in written
