"""Random histories of a whole broker: races, kills, failing and full disks, clock jumps.

`make test` runs half of them, and `make test-compiled` the others; CI adds new seeds (`seeds.py`).
`make histories` tries new ones for a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from fencepost.broker.partitions.local_partitions import LocalPartitions
from fencepost.broker.transactions.ending import Ending
from fencepost.broker.transactions.producer_ids import ProducerIds
from fencepost.coordinator.group.offsets import Offsets
from fencepost.log.segment.aborted import AbortedIndex
from fencepost.partition.partition import Partition
from fencepost.partition.producers import Producers, ProducerState
from tests.broker.histories.model import ViolationError
from tests.broker.histories.seeds import ALWAYS, FRESH, FRESH_SEEDS, chosen, replay_command
from tests.broker.histories.small import make_small
from tests.broker.histories.world import History

pytestmark = pytest.mark.usefixtures("quiet", "small")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch.setattr)


@pytest.mark.parametrize("seed", chosen())
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    history = History(seed)
    try:
        history.run()
    except Exception as problem:
        events = "\n".join(history.events[-30:])
        raise AssertionError(
            f"{problem}\nThe last events:\n{events}\nReplay: {replay_command(seed)}"
        ) from problem


def test_a_seed_gives_the_same_history_again() -> None:
    first, second = History(3), History(3)
    first.run()
    second.run()
    assert first.events == second.events


def test_a_ci_run_tries_new_seeds_besides_the_fixed_ones() -> None:
    fixed = chosen({})
    assert set(fixed) <= set(ALWAYS)
    assert len(set(chosen({FRESH_SEEDS: "1700000000"})) - set(fixed)) == FRESH
    assert chosen({"FENCEPOST_HISTORY_SEED": "7", FRESH_SEEDS: "1700000000"}) == [7]


# -- the checks notice what is wrong
# ---------------------------------------------------------------------------------------------


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def when_durable(
        self: LocalPartitions, partition: Partition, end_offset: int, callback: Callable[[], None]
    ) -> None:
        self.appended(partition)
        callback()

    patch.setattr(LocalPartitions, "when_durable", when_durable)


def forget_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AbortedIndex, "append", lambda self, txn: None)


def forget_producers_at_a_start(patch: pytest.MonkeyPatch) -> None:
    real = Producers.restore
    patch.setattr(Producers, "restore", lambda self, entries: real(self, []))


def write_every_retry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerState, "find_duplicate", lambda self, batch: None)
    patch.setattr(ProducerState, "expects", lambda self, sequence: True)


def commit_offsets_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Offsets, "hold", lambda self, _, key, stored: self.commit(key, stored))


def repeat_producer_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerIds, "allocate", lambda self, done: done(7))


def forget_a_transaction_that_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ending, "_append_complete", lambda self: None)


PLANTED: Final[tuple[Callable[[pytest.MonkeyPatch], None], ...]] = (
    acknowledge_before_the_sync,
    forget_what_was_aborted,
    forget_producers_at_a_start,
    write_every_retry,
    commit_offsets_at_once,
    repeat_producer_ids,
    forget_a_transaction_that_ended,
)


@pytest.mark.interpreted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught_by_one_of_the_first_histories(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    for seed in ALWAYS:
        try:
            History(seed).run()
        except ViolationError:
            return
    pytest.fail("no history has noticed it")
