"""The logins that wait for a slow hash: addresses take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost.broker.security import hash_queue
from fencepost.broker.security.exchanges import Accepted, Refused
from fencepost.broker.security.hash_queue import AT_WORK, HashQueue, WaitingLogin
from tests.broker.virtual_loop import VirtualLoop


class Thread(VirtualLoop):
    """A loop whose thread does the next work when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Callable[[], None]] = []

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Any, *arguments: Any
    ) -> Any:
        future = self.create_future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as problem:  # noqa: BLE001 - passed on through the future.
                future.set_exception(problem)

        self.given.append(run)
        return future

    def work(self) -> None:
        self.given.pop(0)()
        self.settle()


class Stage:
    """A queue, and what became of its logins, by name."""

    def __init__(self) -> None:
        self.thread = Thread()
        self.queue = HashQueue()
        self.queue.attach(self.thread)
        self.answered: list[str] = []
        self.dropped: list[str] = []

    def add(self, name: str, host: str) -> WaitingLogin:
        def answer(step: Accepted | Refused) -> None:
            self.answered.append(step.user if isinstance(step, Accepted) else step.reason)

        login = WaitingLogin(
            host, lambda: Accepted(name, b""), answer, lambda: self.dropped.append(name)
        )
        self.queue.add(login)
        return login

    def work_off(self) -> list[str]:
        while self.thread.given:
            self.thread.work()
        return self.answered


@pytest.fixture
def stage() -> Iterator[Stage]:
    found = Stage()
    yield found
    found.thread.close()


def test_a_login_waits_behind_one_of_each_other_address(stage: Stage) -> None:
    for number in range(100):
        stage.add(f"guess {number}", "10.0.0.1")
    for number in range(3):
        stage.add(f"other {number}", f"10.0.0.{number + 2}")
    stage.add("alice", "10.0.0.9")
    found = stage.work_off()
    assert found.index("alice") == AT_WORK + 4
    assert [name for name in found if name.startswith("guess")] == [
        f"guess {number}" for number in range(100)
    ]


def test_an_address_that_comes_again_waits_for_its_turn(stage: Stage) -> None:
    for number in range(AT_WORK + 1):
        stage.add(f"first {number}", "10.0.0.1")
    stage.add("alice", "10.0.0.2")
    stage.thread.work()  # The turn of 10.0.0.2 is next.
    stage.add("again", "10.0.0.1")
    assert stage.work_off()[-2:] == ["alice", "again"]


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("?", "10.0.0.2", False),
        (":", "10.0.0.2", False),
    ],
)
def test_a_network_of_ipv6_has_one_turn(one: str, other: str, are_one: bool) -> None:
    def nothing(*_: object) -> Any:
        return None

    found = [WaitingLogin(each, nothing, nothing, nothing).network for each in (one, other)]
    assert (found[0] == found[1]) is are_one


def test_when_too_many_wait_the_address_with_most_of_them_loses_its_newest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_queue, "MAX_WAITING", AT_WORK + 4)
    for number in range(AT_WORK + 3):
        stage.add(f"guess {number}", "10.0.0.1")
    stage.add("alice", "10.0.0.2")
    assert not stage.dropped
    stage.add("bob", "10.0.0.3")
    stage.add("one more guess", "10.0.0.1")
    assert stage.dropped == [f"guess {AT_WORK + 2}", "one more guess"]
    assert {"alice", "bob"} < set(stage.work_off())
    assert set(stage.answered).isdisjoint(stage.dropped)


def test_a_client_that_has_left_is_not_hashed_for(stage: Stage) -> None:
    logins = [stage.add(f"guess {number}", "10.0.0.1") for number in range(AT_WORK + 3)]
    for login in (logins[-1], logins[-2], logins[-1], logins[0]):
        stage.queue.forget(login)
    assert stage.work_off() == [f"guess {number}" for number in range(AT_WORK + 1)]
    stage.add("alice", "10.0.0.1")
    assert stage.work_off()[-1] == "alice"


def test_a_hash_that_fails_refuses_its_login_and_no_other(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Accepted:
        raise MemoryError("no memory")

    stage.queue.add(
        WaitingLogin("10.0.0.1", fail, lambda _: stage.answered.append("refused"), lambda: None)
    )
    stage.add("alice", "10.0.0.1")
    assert stage.work_off() == ["refused", "alice"]
    assert "a password could not be hashed" in caplog.text


def test_after_a_stop_nobody_is_answered(stage: Stage) -> None:
    for number in range(AT_WORK + 2):
        stage.add(f"guess {number}", "10.0.0.1")
    stage.queue.close()
    assert not stage.work_off()
