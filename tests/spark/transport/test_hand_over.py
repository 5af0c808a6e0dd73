"""Goal: the identity of a transaction reaches the step of the task that hands it over, no other."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

from fencepost.client.transactions import ProducerIdentity
from fencepost.spark.failures import SinkRefused
from fencepost.spark.transport.delivery import Attempt
from fencepost.spark.transport.meeting.hand_over import (
    Orders,
    handing_over,
    make_token,
    take_orders,
)

FIRST = Orders(ProducerIdentity("refunds", 7, 3, 2), drains=False)
SECOND = Orders(ProducerIdentity("refunds", 7, 4, 2), drains=True)
SECONDS = 20.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which must be empty afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert not list(tmp_path.iterdir())


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as found:
        yield found


def attempt(number: int) -> Attempt:
    return Attempt(partition_id=0, attempt_number=0, task_attempt_id=number)


def test_each_step_gets_the_identity_of_its_own_writer_whoever_comes_first(
    folder: Path, pool: ThreadPoolExecutor
) -> None:
    token = make_token()
    early = pool.submit(take_orders, token, attempt(2), SECONDS)
    with handing_over(token, attempt(1), FIRST):
        assert take_orders(token, attempt(1), SECONDS) == FIRST
        assert not early.done()
        with handing_over(token, attempt(2), SECOND):
            assert early.result(SECONDS) == SECOND


def test_the_step_of_another_dataframe_or_attempt_gets_nothing(folder: Path) -> None:
    token = make_token()
    with handing_over(token, attempt(1), FIRST):
        for stranger, number in ((make_token(), 1), (token, 2)):
            with pytest.raises(SinkRefused, match="no writer came within 0 s"):
                take_orders(stranger, attempt(number), 0.0)


def test_a_refusal_reaches_the_step_with_its_reason(folder: Path) -> None:
    token, orders = make_token(), FIRST._replace(refusal="two queries use one id")
    with handing_over(token, attempt(1), orders):
        assert take_orders(token, attempt(1), SECONDS).refusal == "two queries use one id"


def test_an_identity_is_handed_over_once(folder: Path) -> None:
    token = make_token()
    with handing_over(token, attempt(1), FIRST):
        take_orders(token, attempt(1), SECONDS)
        with pytest.raises(SinkRefused, match="no writer came"):
            take_orders(token, attempt(1), 0.0)


def test_a_writer_whose_step_never_came_leaves_nothing_behind(folder: Path) -> None:
    token = make_token()
    with pytest.raises(RuntimeError), handing_over(token, attempt(1), FIRST):
        raise RuntimeError
    with pytest.raises(SinkRefused):
        take_orders(token, attempt(1), 0.0)


def test_a_transactional_id_of_any_length_is_handed_over(
    folder: Path, pool: ThreadPoolExecutor
) -> None:
    token = make_token()
    long = Orders(ProducerIdentity("é" * 30_000, 7, 3, 2), drains=False)
    taken = pool.submit(take_orders, token, attempt(1), SECONDS)
    done = threading.Event()

    def hand_over() -> None:
        with handing_over(token, attempt(1), long):
            done.wait(SECONDS)

    writer = pool.submit(hand_over)
    assert taken.result(SECONDS) == long
    done.set()
    writer.result(SECONDS)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_else_of_that_name_is_refused(folder: Path, kind: str) -> None:
    token = make_token()
    path = folder / f"fencepost-{token}-1"
    if kind == "file":
        path.write_text('[["stolen", 1, 1, 2], false]\n')
    else:
        path.symlink_to(folder / "elsewhere")
    with pytest.raises(SinkRefused):
        take_orders(token, attempt(1), 0.0)
    # It belongs to somebody else, so it stays.
    assert os.path.lexists(path)
    path.unlink()


def test_a_pipe_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SinkRefused, match="was not made by this application"):
        take_orders(make_token(), attempt(1), 0.0)
    [path] = folder.iterdir()
    path.unlink()


@pytest.mark.parametrize("call", ["mkfifo", "open"])
def test_a_folder_in_which_no_pipe_can_be_made_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, fail_once(getattr(os, call)))
    with pytest.raises(SinkRefused, match=r"No space left on device.*set TMPDIR"):
        take_orders(make_token(), attempt(1), 0.0)
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("call", ["write", "read"])
def test_a_call_that_fails_leaves_nothing_behind_and_nothing_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    token, before = make_token(), len(os.listdir("/dev/fd"))
    monkeypatch.setattr(os, call, fail_once(getattr(os, call)))
    with (
        pytest.raises(OSError, match="No space left"),
        handing_over(token, attempt(1), FIRST),
    ):
        take_orders(token, attempt(1), SECONDS)
    assert len(os.listdir("/dev/fd")) == before


def test_a_pipe_that_cannot_be_removed_does_not_fail_the_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make_token()
    with handing_over(token, attempt(1), FIRST):
        monkeypatch.setattr(Path, "unlink", fail_once(Path.unlink))
        assert take_orders(token, attempt(1), SECONDS) == FIRST


def fail_once(genuine: Callable[..., Any]) -> Callable[..., Any]:
    calls: list[None] = []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return genuine(*arguments, **named)

    return call


def test_a_hundred_tasks_at_once_get_their_own_orders(folder: Path) -> None:
    token = make_token()

    def task(number: int) -> bool:
        mine = Orders(ProducerIdentity("refunds", number, 0, 2), drains=False)
        with handing_over(token, attempt(number), mine):
            return steps[number].result(SECONDS) == mine

    with ThreadPoolExecutor(100) as first, ThreadPoolExecutor(100) as second:
        steps = [first.submit(take_orders, token, attempt(n), SECONDS) for n in range(100)]
        assert all(second.map(task, range(100)))


def test_only_the_user_of_the_application_can_open_the_pipe(folder: Path) -> None:
    with handing_over(make_token(), attempt(1), FIRST):
        [path] = folder.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
