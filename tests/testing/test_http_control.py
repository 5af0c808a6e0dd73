"""`fencepost serve --test` as a real process, and requests as curl sends them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.client.blocking import connect
from fencepost.client.record_writer import RecordWriter
from fencepost.records.opened import Record
from tests.broker.metrics.test_http import read_all

PATIENCE_SECONDS = 60.0


@dataclass
class Control:
    """A client of the control."""

    host: str
    token: str
    bootstrap: str
    token_file: Path

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """The status, and the JSON of the answer."""
        line = http.client.HTTPConnection(self.host, timeout=PATIENCE_SECONDS)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            line.request(
                method,
                path,
                body=data,
                headers={"Authorization": f"Bearer {self.token}", **(headers or {})},
            )
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            line.close()

    def done(self, method: str, path: str, body: object = None) -> Any:
        """The answer to a request that succeeds."""
        status, answer = self.ask(method, path, body)
        assert status == 200, answer
        return answer

    @property
    def contents(self) -> fencepost.Contents:
        """What is in the broker, by the wire."""
        return fencepost.Contents(self.bootstrap)


def start(*arguments: str) -> subprocess.Popen[str]:
    # The package that is tested, which is not the installed one if a bug is planted in a copy.
    paths = [str(Path(fencepost.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "fencepost", "serve", "--test", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_control(process: subprocess.Popen[str]) -> Control:
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    found = re.fullmatch(
        r"fencepost test control is at http://(\S+), with the token in (.+)\n", first
    )
    assert found, first
    file = Path(found[2])
    ready = second.removeprefix("fencepost is ready at ").strip()
    return Control(found[1], file.read_text(), ready, file)


@pytest.fixture(scope="module")
def served() -> Iterator[Control]:
    with start("--listen", "127.0.0.1:0") as process:
        try:
            yield read_control(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)


@pytest.fixture
def control(served: Control) -> Iterator[Control]:
    yield served
    served.done("DELETE", "/faults")


def begin(control: Control, transactional_id: str, *, commit: bool = False) -> None:
    """Opens a transaction, and leaves it or commits it."""
    topic = f"{transactional_id}-topic"
    control.contents.create_topic(topic)
    with connect(control.bootstrap) as client:
        identity = client.init_producer_id(transactional_id)
        with client.writer(identity) as writer:
            wrote = RecordWriter(writer, topic, [0], batch_bytes=1 << 16)
            wrote.add(Record(value=b"v"), 0, 0)
            wrote.flush()
        if commit:
            client.end_txn(identity, commit=True)


def test_the_token_is_for_this_user_alone(control: Control) -> None:
    assert stat.S_IMODE(control.token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(control.token_file.parent.stat().st_mode) == 0o700
    assert len(control.token) >= 40


def test_a_fault_fires_once_and_tells_of_it(control: Control) -> None:
    made = control.done(
        "POST",
        "/faults",
        {
            "api": "Metadata",
            "action": "lose_reply",
            "client_id": "service",
        },
    )
    assert made["problem"].startswith("It never fired: none came")
    with connect(control.bootstrap, {"client.id": "service"}) as client:
        client.metadata([])
    found = control.done("GET", "/faults")
    assert [(each["id"], each["fired"], each["problem"]) for each in found["faults"]] == [
        (made["id"], 1, None)
    ]
    [fired] = found["fired"]
    assert (fired["api"], fired["fault"], fired["client_id"]) == (
        "Metadata",
        "lose_reply()",
        "service",
    )


def test_deleting_all_faults_returns_them_and_forgets_them(control: Control) -> None:
    control.done("POST", "/faults", {"api": "EndTxn", "action": "hold", "times": 2})
    kept = control.done("POST", "/faults", {"api": "EndTxn", "action": "lose_reply"})
    gone = control.done("POST", "/faults", {"api": "EndTxn", "action": "disconnect"})
    control.done("DELETE", f"/faults/{gone['id']}")
    left = control.done("DELETE", "/faults")["faults"]
    assert [each["fault"] for each in left] == ["EndTxn: hold()", kept["fault"]]
    assert control.done("GET", "/faults") == {"faults": [], "fired": []}
    begin(control, "next", commit=True)
    assert control.done("GET", "/faults") == {"faults": [], "fired": []}
    assert control.ask("DELETE", f"/faults/{gone['id']}")[0] == 404


def test_time_passes_and_a_transaction_times_out(control: Control) -> None:
    begin(control, "slow")
    [found] = control.done("GET", "/open-transactions")["transactions"]
    assert found["transactional_id"] == "slow"
    assert found["partitions"] == [{"topic": "slow-topic", "partition": 0}]
    before = control.done("GET", "/clock")["now"]
    after = control.done("POST", "/clock/advance", {"minutes": 1, "ms": 1})["now"]
    assert after > before
    assert control.done("GET", "/open-transactions") == {"transactions": []}
    assert control.done("POST", "/clock/at", {"moment": "2130-01-01T00:00Z"})["now"] > "2130"


def test_committed_records_and_those_with_other_fates_are_told_apart(control: Control) -> None:
    control.contents.produce("fates", ("k", "v"), b"\xff", transactional_id="fates")
    control.contents.produce("fates", "gone", transactional_id="fates", commit=False)
    committed = control.done("GET", "/committed/fates")["records"]
    assert [(each["key"], each.get("value"), each["fate"]) for each in committed] == [
        ("k", "v", "committed"),
        (None, None, "committed"),
    ]
    assert committed[1]["value_base64"] == "/w=="
    every = control.done("GET", "/records/fates")["records"]
    assert [each["fate"] for each in every] == ["committed", "committed", "aborted"]


def test_exactly_once_is_asserted(control: Control) -> None:
    control.contents.produce("paid", ("a", "1"), ("b", "1"))
    control.contents.produce("refunded", ("a", "1"), ("a", "1"))
    status, answer = control.ask("POST", "/exactly-once", {"input": "paid", "output": "refunded"})
    assert status == 409
    assert "1 lost, 1 more than once" in answer["error"]
    assert control.done("POST", "/exactly-once", {"input": "paid", "output": "paid"}) == {}


def test_a_broker_that_crashed_says_so_until_it_is_restarted(control: Control) -> None:
    control.contents.produce("kept", "v")
    control.done("POST", "/crash")
    try:
        status, answer = control.ask("GET", "/committed/kept")
        assert (status, "has crashed" in answer["error"]) == (409, True)
    finally:
        control.done("POST", "/restart")
    assert len(control.done("GET", "/committed/kept")["records"]) == 1


@pytest.mark.parametrize(
    ("headers", "status", "sentence"),
    [
        ({"Authorization": "Bearer wrong"}, 401, "with the token of the file"),
        ({"Authorization": ""}, 401, "Authorization: Bearer TOKEN"),
        ({"Authorization": "Bearer \xff"}, 401, "with the token of the file"),
        ({"Host": "attacker.example"}, 421, "Host header"),
        ({"Host": "127.0.0.1"}, 421, "Host header"),
        ({"Host": ""}, 421, "Host header"),
        ({"Transfer-Encoding": "chunked"}, 411, "Content-Length"),
        ({"Content-Length": "-1"}, 411, "Content-Length"),
        ({"Content-Length": "65537"}, 413, "at most 65536 bytes"),
        ({"Content-Length": "9" * 30}, 411, "Content-Length"),
    ],
)
def test_strangers_and_unbounded_bodies_are_refused(
    control: Control, headers: dict[str, str], status: int, sentence: str
) -> None:
    found, answer = control.ask("DELETE", "/faults", headers=headers)
    assert (found, sentence in answer["error"]) == (status, True)


def test_a_body_that_is_too_large_is_refused_in_a_sentence_that_arrives(control: Control) -> None:
    status, answer = control.ask("POST", "/faults", raw=b"x" * 10_000_000)
    assert (status, "at most 65536 bytes" in answer["error"]) == (413, True)


@pytest.mark.parametrize(
    ("method", "path", "raw", "status", "sentence"),
    [
        ("POST", "/faults", b"{", 400, "not JSON"),
        ("POST", "/faults", b"\xff\xfe", 400, "not JSON"),
        ("POST", "/faults", b"[" * 60_000, 400, "not JSON"),
        ("POST", "/faults", b"[1]", 400, "not a JSON object"),
        ("POST", "/faults", b"", 400, 'needs an "action"'),
        ("POST", "/faults", b'{"api": "EndTx", "action": "hold"}', 400, "mean 'EndTxn'?"),
        ("PUT", "/faults", b"", 405, "DELETE and GET and POST only"),
        ("GET", "/fault", b"", 404, "There is no '/fault'; there are /faults"),
        ("GET", "/committed", b"", 404, "there are"),
        ("GET", "/committed/none", b"", 409, "There is no topic 'none'"),
        ("POST", "/faults/77/release", b"", 404, "There is no fault '77'"),
        ("POST", "/clock/advance", b"", 400, "needs a duration"),
        ("POST", "/clock/advance", b'{"ms": -1}', 400, "forwards only"),
        ("POST", "/clock/advance", b'{"day": 1}', 400, "did you mean 'days'?"),
        ("POST", "/clock/advance", b'{"days": 1e300}', 400, "at most 9999"),
        ("POST", "/clock/advance", b'{"days": 1e999}', 400, "is a number"),
        ("POST", "/clock/at", b'{"moment": "soon"}', 400, "'soon' is not a time"),
        ("POST", "/clock/at", b'{"moment": "1999-01-01"}', 400, "forwards only"),
        ("POST", "/exactly-once", b'{"input": "a"}', 400, "Name two topics"),
        ("POST", "/crash", b'{"restart": true}', 400, "/crash has no 'restart': send no body"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(
    control: Control, method: str, path: str, raw: bytes, status: int, sentence: str
) -> None:
    found, answer = control.ask(method, path, raw=raw)
    assert (found, answer["error"]) == (status, answer["error"])
    assert sentence in answer["error"]


def test_what_is_no_http_is_refused_as_json_too(control: Control) -> None:
    host, _, port = control.host.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as line:
        line.sendall(b"GET /faults\r\n\r\n")
        reply = read_all(line)
    assert reply.startswith(b"HTTP/1.1 400")
    assert json.loads(reply.partition(b"\r\n\r\n")[2]) == {"error": "this is not HTTP"}


def test_a_held_request_waits_for_its_release_and_time_waits_with_it(control: Control) -> None:
    made = control.done("POST", "/faults", {"api": "Metadata", "action": "hold", "client_id": "s"})
    answered = threading.Event()

    def ask() -> None:
        with connect(control.bootstrap, {"client.id": "s"}) as client:
            client.metadata([])
            answered.set()

    waiting = threading.Thread(target=ask)
    waiting.start()
    try:
        while not control.done("GET", "/faults")["faults"][0]["held"]:
            assert waiting.is_alive()
        status, answer = control.ask("POST", "/clock/advance", {"ms": 1})
        assert (status, "holds a request" in answer["error"]) == (409, True)
        assert not answered.is_set()
    finally:
        control.done("POST", f"/faults/{made['id']}/release")
        waiting.join(PATIENCE_SECONDS)
    assert answered.is_set()
