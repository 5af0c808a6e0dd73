"""When broker processes are started, killed and given up."""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.cluster.parent.supervision import (
    BUSY_MS,
    FIRST_PAUSE_MS,
    FIRST_REPORT_MS,
    HEARTBEAT_MS,
    LONGEST_PAUSE_MS,
    LOOK_MS,
    REAP_MS,
    STABLE_MS,
    STOOD_STILL_MS,
    Action,
    Deed,
    ProcessState,
    Supervision,
)

SESSION_MS = 9_000

start, kill, stop, suspend, fail_over = (
    partial(Action, deed)
    for deed in (Deed.START, Deed.KILL, Deed.STOP, Deed.SUSPEND, Deed.FAIL_OVER)
)


class Parent:
    """A supervision with a clock; broker 1 is the one that the tests treat badly."""

    def __init__(self, *, brokers: int = 2) -> None:
        self.now_ms = 1_000_000
        self.used_ms: int | None = None
        """The processor time that every broker has used, if the system tells."""
        self.share = 0
        """Percent of a processor that a broker uses."""
        self.rules = Supervision(
            list(range(1, brokers + 1)),
            session_timeout_ms=SESSION_MS,
            now_ms=self.now_ms,
            processor_ms=lambda _: self.used_ms,
        )
        self.silent: set[int] = set()
        self.actions: list[Action] = []

    @property
    def first(self) -> ProcessState:
        return self.rules.processes[1].state

    def serve(self) -> Parent:
        for action in self.rules.start_all():
            self.begin(action.broker_id)
        return self

    def begin(self, broker_id: int) -> None:
        self.rules.on_started(broker_id, self.now_ms)
        self.rules.on_serving(broker_id, self.now_ms)

    def run(self, duration_ms: int) -> list[Action]:
        """Lets time pass; every broker reports that is not silent. Returns the actions."""
        actions: list[Action] = []
        until_ms = self.now_ms + duration_ms
        while self.now_ms < until_ms:
            self.now_ms += HEARTBEAT_MS
            if self.used_ms is not None:
                self.used_ms += HEARTBEAT_MS * self.share // 100
            for broker_id in self.rules.processes:
                if broker_id not in self.silent:
                    self.rules.on_heartbeat(broker_id, self.now_ms)
            actions += self.rules.on_time(self.now_ms)
        return actions

    def kill_and_reap(self) -> None:
        self.rules.kill(1, self.now_ms, hold=False)
        self.rules.on_reaped(1, self.now_ms)


def test_every_broker_is_started_once() -> None:
    parent = Parent(brokers=3)
    assert parent.rules.start_all() == [start(1), start(2), start(3)]
    assert parent.rules.start_all() == []


def test_a_broker_that_reports_is_left_alone() -> None:
    assert Parent().serve().run(10 * SESSION_MS) == []


def test_a_broker_that_is_silent_for_the_session_timeout_is_killed() -> None:
    parent = Parent().serve()
    parent.silent = {1}
    assert parent.run(SESSION_MS - HEARTBEAT_MS) == []
    assert parent.run(HEARTBEAT_MS) == [kill(1)]


def busy(share: int) -> Parent:
    parent = Parent().serve()
    parent.used_ms, parent.share, parent.silent = 5_000, share, {1}
    return parent


def test_a_silent_broker_that_uses_the_processor_has_half_a_minute() -> None:
    parent = busy(90)
    assert parent.run(BUSY_MS - HEARTBEAT_MS) == [], "it may be busy with a request"
    assert parent.run(2 * HEARTBEAT_MS) == [kill(1)], "or in an endless loop"


def test_a_busy_broker_that_reports_again_is_left_alone() -> None:
    parent = busy(50)
    assert parent.run(2 * SESSION_MS) == []
    parent.silent = set()
    assert parent.run(SESSION_MS) == []
    parent.silent, parent.share = {1}, 0
    assert parent.run(SESSION_MS) == [kill(1)]


def test_a_silent_broker_that_waits_for_its_disk_is_killed_after_the_session_timeout() -> None:
    parent = busy(1)
    assert parent.run(SESSION_MS - HEARTBEAT_MS) == []
    assert parent.run(HEARTBEAT_MS) == [kill(1)]


def test_a_broker_that_was_busy_and_then_hangs_is_killed_at_the_next_look() -> None:
    parent = busy(90)
    assert parent.run(2 * SESSION_MS) == []
    parent.share = 0
    assert kill(1) in parent.run(2 * LOOK_MS)


def test_a_broker_that_hangs_while_it_starts_is_killed() -> None:
    parent = Parent()
    parent.rules.start_all()
    parent.rules.on_started(1, parent.now_ms)
    parent.silent = {1}
    assert parent.run(FIRST_REPORT_MS - HEARTBEAT_MS) == []
    assert parent.run(HEARTBEAT_MS) == [kill(1)]


def test_a_broker_that_has_reported_once_while_it_starts_has_the_session_timeout() -> None:
    parent = Parent()
    parent.rules.start_all()
    parent.rules.on_started(1, parent.now_ms)
    parent.rules.on_heartbeat(1, parent.now_ms)
    parent.silent = {1}
    assert parent.run(SESSION_MS) == [kill(1)]


def test_the_time_of_a_first_report_is_not_cut_short_when_the_parent_stands_still() -> None:
    parent = Parent()
    parent.rules.start_all()
    parent.rules.on_started(1, parent.now_ms)
    parent.silent = {1}
    parent.now_ms += 60_000
    assert parent.rules.on_time(parent.now_ms) == []
    assert parent.run(FIRST_REPORT_MS - HEARTBEAT_MS) == []
    assert kill(1) in parent.run(2 * HEARTBEAT_MS)


def test_a_start_may_take_longer_than_the_session_timeout() -> None:
    parent = Parent()
    parent.rules.start_all()
    parent.rules.on_started(1, parent.now_ms)
    parent.rules.on_started(2, parent.now_ms)
    assert parent.run(20 * SESSION_MS) == []


def test_others_lead_only_after_the_killed_process_is_reaped() -> None:
    parent = Parent().serve()
    parent.silent = {1}
    actions = parent.run(SESSION_MS)
    assert fail_over(1) not in actions
    assert parent.rules.on_reaped(1, parent.now_ms) == [fail_over(1)]


def test_partitions_of_a_process_that_cannot_be_reaped_have_no_leader() -> None:
    parent = Parent().serve()
    assert parent.rules.kill(1, parent.now_ms, hold=False) == [kill(1)]
    parent.silent = {1}
    assert parent.run(REAP_MS) == [suspend(1)]
    assert parent.run(20 * SESSION_MS) == []
    assert parent.rules.processes[1].is_suspended
    assert parent.rules.on_reaped(1, parent.now_ms) == [fail_over(1)]
    assert not parent.rules.processes[1].is_suspended


def test_a_process_that_ends_by_itself_fails_over_at_once_and_is_restarted() -> None:
    parent = Parent().serve()
    assert parent.rules.on_reaped(1, parent.now_ms) == [fail_over(1)]
    parent.silent = {1}
    assert parent.run(FIRST_PAUSE_MS - HEARTBEAT_MS) == []
    assert parent.run(HEARTBEAT_MS) == [start(1)]


def test_the_pause_doubles_while_a_broker_keeps_dying_early() -> None:
    parent = Parent().serve()
    pauses = []
    for _ in range(7):
        parent.kill_and_reap()
        died_ms = parent.now_ms
        while not parent.run(HEARTBEAT_MS):
            pass
        pauses.append(parent.now_ms - died_ms)
        parent.begin(1)
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, LONGEST_PAUSE_MS, LONGEST_PAUSE_MS]


def test_a_broker_that_served_for_long_is_restarted_after_the_short_pause() -> None:
    parent = Parent().serve()
    parent.kill_and_reap()
    assert parent.run(FIRST_PAUSE_MS) == [start(1)]
    parent.begin(1)
    parent.run(STABLE_MS)
    parent.kill_and_reap()
    assert parent.run(FIRST_PAUSE_MS) == [start(1)]


def test_a_broker_that_an_operator_killed_stays_dead_until_it_is_restarted() -> None:
    parent = Parent().serve()
    parent.rules.kill(1, parent.now_ms, hold=True)
    parent.rules.on_reaped(1, parent.now_ms)
    assert parent.run(10 * LONGEST_PAUSE_MS) == []
    assert parent.rules.restart(1) == [start(1)]


def test_a_dead_broker_that_an_operator_kills_is_not_restarted() -> None:
    parent = Parent().serve()
    parent.kill_and_reap()
    assert parent.rules.kill(1, parent.now_ms, hold=True) == []
    assert parent.run(10 * LONGEST_PAUSE_MS) == []


def test_killing_twice_sends_one_signal() -> None:
    parent = Parent().serve()
    assert parent.rules.kill(1, parent.now_ms, hold=True) == [kill(1)]
    assert parent.rules.kill(1, parent.now_ms, hold=True) == []


def test_a_restart_before_the_kill_is_reaped_follows_the_reaping() -> None:
    parent = Parent().serve()
    parent.rules.kill(1, parent.now_ms, hold=True)
    assert parent.rules.restart(1) == []
    parent.rules.on_reaped(1, parent.now_ms)
    assert parent.run(FIRST_PAUSE_MS) == [start(1)]


def test_a_broker_that_does_not_stop_in_time_is_killed_although_it_reports() -> None:
    parent = Parent().serve()
    assert parent.rules.stop(1, parent.now_ms, patience_ms=5_000) == [stop(1)]
    assert parent.run(4_500) == []
    assert parent.run(HEARTBEAT_MS) == [kill(1)]


def test_a_stopped_broker_starts_again_unless_all_are_stopping() -> None:
    parent = Parent().serve()
    parent.rules.stop(1, parent.now_ms, patience_ms=5_000)
    parent.rules.on_reaped(1, parent.now_ms)
    assert parent.run(FIRST_PAUSE_MS) == [start(1)]


def test_nothing_is_started_while_all_are_stopping() -> None:
    parent = Parent().serve()
    parent.kill_and_reap()
    assert parent.rules.stop_all(parent.now_ms, patience_ms=5_000) == [stop(2)]
    parent.rules.on_reaped(2, parent.now_ms)
    assert parent.run(10 * LONGEST_PAUSE_MS) == []
    assert parent.rules.restart(1) == []


def test_a_parent_that_stood_still_kills_nobody() -> None:
    parent = Parent().serve()
    parent.silent = {1, 2}
    parent.run(SESSION_MS - HEARTBEAT_MS)
    parent.now_ms += 3_600_000
    assert parent.rules.on_time(parent.now_ms) == []
    assert parent.run(SESSION_MS - HEARTBEAT_MS) == []
    assert parent.run(HEARTBEAT_MS) == [kill(1), kill(2)]


def test_a_clock_that_is_set_back_kills_nobody() -> None:
    parent = Parent().serve()
    parent.now_ms -= 3_600_000
    assert parent.rules.on_time(parent.now_ms) == []
    assert parent.run(SESSION_MS) == []
    parent.silent = {1}
    assert parent.run(SESSION_MS) == [kill(1)]


class AnyOrder(RuleBasedStateMachine):
    """Operators, deaths and silence in any order: a broker has at most one process at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.supervision = Supervision([1, 2], session_timeout_ms=SESSION_MS, now_ms=0)
        self.alive: dict[int, bool] = {1: False, 2: False}
        """Whether the kernel has a process for the broker."""
        self.is_stopping = False

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            broker_id = action.broker_id
            if action.deed is Deed.START:
                assert not self.alive[broker_id], "a second process would write beside the first"
                assert not self.is_stopping
                self.alive[broker_id] = True
                self.supervision.on_started(broker_id, self.now_ms)
            elif action.deed is not Deed.FAIL_OVER:
                assert self.alive[broker_id]
            else:
                assert not self.alive[broker_id], "others lead while the process may still write"

    @rule()
    def start_all(self) -> None:
        self.carry_out(self.supervision.start_all())

    @rule(broker_id=st.sampled_from([1, 2]))
    def serves(self, broker_id: int) -> None:
        if self.alive[broker_id]:
            self.supervision.on_serving(broker_id, self.now_ms)

    @rule(broker_id=st.sampled_from([1, 2]))
    def reports(self, broker_id: int) -> None:
        if self.alive[broker_id]:
            self.supervision.on_heartbeat(broker_id, self.now_ms)

    @rule(broker_id=st.sampled_from([1, 2]))
    def ends(self, broker_id: int) -> None:
        if self.alive[broker_id]:
            self.alive[broker_id] = False
            self.carry_out(self.supervision.on_reaped(broker_id, self.now_ms))

    @rule(broker_id=st.sampled_from([1, 2]), hold=st.booleans())
    def kill(self, broker_id: int, hold: bool) -> None:
        self.carry_out(self.supervision.kill(broker_id, self.now_ms, hold=hold))

    @rule(broker_id=st.sampled_from([1, 2]))
    def restart(self, broker_id: int) -> None:
        self.carry_out(self.supervision.restart(broker_id))

    @rule(broker_id=st.sampled_from([1, 2]))
    def stop(self, broker_id: int) -> None:
        self.carry_out(self.supervision.stop(broker_id, self.now_ms, patience_ms=5_000))

    @precondition(lambda self: not self.is_stopping)
    @rule()
    def stop_all(self) -> None:
        self.is_stopping = True
        self.carry_out(self.supervision.stop_all(self.now_ms, patience_ms=5_000))

    @rule(gap_ms=st.sampled_from([HEARTBEAT_MS, STOOD_STILL_MS, SESSION_MS, 100_000, -5_000]))
    def look(self, gap_ms: int) -> None:
        self.now_ms += gap_ms
        actions = self.supervision.on_time(self.now_ms)
        if gap_ms >= STOOD_STILL_MS:
            assert actions == []
        self.carry_out(actions)

    @invariant()
    def a_process_exists_exactly_when_its_state_says_so(self) -> None:
        for broker_id, process in self.supervision.processes.items():
            assert (process.state is not ProcessState.DEAD) == self.alive[broker_id]

    @invariant()
    def whatever_runs_has_a_deadline(self) -> None:
        for process in self.supervision.processes.values():
            if process.state is not ProcessState.DEAD and not process.is_suspended:
                assert process.deadline_ms is not None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
