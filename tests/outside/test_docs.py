"""The recipes of docs/outside.md, with crashes after the effect: a repetition changes nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fencepost.client.admin import NewTopic
from fencepost.client.blocking import connect
from tests.outside.outbox.conftest import kafka

__all__ = ["kafka"]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "outside.md").read_text()
ITEMS = [(b"tea", b"5"), (b"tea", b"4"), (b"salt", b"9"), (b"tea", b"3")]


class CrashError(Exception):
    """Kills the process between an effect and the commit of its offset."""


class Payments(BaseHTTPRequestHandler):
    """A service that recognises keys."""

    charges: dict[str, bytes]
    calls = 0

    def do_POST(self) -> None:
        type(self).calls += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.charges.setdefault(self.headers["Idempotency-Key"], body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def payments() -> Iterator[tuple[type[Payments], str]]:
    handler = type("Handler", (Payments,), {"charges": {}})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_recipes_change_nothing_the_second_time(
    kafka: str,
    payments: tuple[type[Payments], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler, address = payments
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    for there, here in (
        ("localhost:9092", kafka),
        ("http://payments.example", address),
        ('"group.id"', '"session.timeout.ms": 6000, "group.id"'),
    ):
        assert there in code
        code = code.replace(there, here)
    monkeypatch.chdir(tmp_path)
    Path("payments").mkdir()
    recipes: dict[str, Any] = {}
    exec(compile(code, "docs/outside.md", "exec"), recipes)
    with connect(kafka) as cluster:
        cluster.create_topics([NewTopic("recipes", 1)])
    produce(kafka)
    crashes = iter([False, True, False, True])

    def effect(record: Any) -> None:
        for name in ("charge", "store", "update"):
            recipes[name](record)
        if next(crashes, False):
            raise CrashError

    for _ in range(2):
        with pytest.raises(CrashError):
            recipes["apply_all"]("recipes", effect)
    recipes["apply_all"]("recipes", effect, idle_seconds=3)

    assert handler.calls == len(ITEMS) + 2, "two of them came twice"
    expected = {f"recipes/0/{offset}": value for offset, (_, value) in enumerate(ITEMS)}
    assert handler.charges == expected
    files = sorted(path for path in Path("payments").iterdir())
    assert [path.read_bytes() for path in files] == [value for _, value in ITEMS]
    stock = recipes["database"].execute("SELECT item, amount FROM stock ORDER BY item")
    assert stock.fetchall() == [("salt", 9), ("tea", 3)]
    # A process that wakes up repeats an old record.
    late = type("Late", (), {"key": lambda _: b"tea", "value": lambda _: b"5"})()
    late.offset = lambda: 0
    recipes["update"](late)
    stock = recipes["database"].execute("SELECT amount FROM stock WHERE item = 'tea'")
    assert stock.fetchone() == (3,)
    recipes["database"].close()


def produce(kafka: str) -> None:
    """In one transaction, so that the offsets have no gaps."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "recipes"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for key, value in ITEMS:
        producer.produce("recipes", value, key)
    producer.commit_transaction(20)
