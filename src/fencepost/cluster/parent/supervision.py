"""When broker processes are started, killed and given up: the parent's rules, without a process.

Theory of operation
-------------------
The parent reports what happens (a process started, answered, ended) and what time it is. Each
method returns the actions that follow, and the parent carries them out. So these rules can be
tested without processes and without waiting.

    state     the process                                 leads partitions
    STARTING  runs, and loads what it will lead           those that it led before
    SERVING   answers heartbeats and clients              yes
    STOPPING  was asked to stop                           until it has handed them over
    KILLED    got SIGKILL, but the kernel still has it    no broker does, until it is reaped
    DEAD      does not exist                              others do

A process that has been silent for the session timeout is killed, unless it is busy: while it uses
the processor it has `BUSY_MS`. It may be decoding or sorting something large for a client, and
another broker would soon do the same; a process that waits for its disk uses none. A new process
has longer to report for the first time.

Only when a process has been reaped may others lead its partitions (`FAIL_OVER`): a process that
does not exist cannot write. If the kernel does not let it die, its partitions have no leader
(`SUSPEND`).

A dead process is started again after a pause, which doubles each time the process dies early.
A process that an operator killed stays dead until the operator restarts it.

If the parent itself stood still (Ctrl-Z, a paused container), silence proves nothing: the
brokers may have stood still as well, or their heartbeats are still unread. Every deadline then
begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

HEARTBEAT_MS: Final = 500
"""How often a broker reports to the parent, and the parent looks for silence."""

STOOD_STILL_MS: Final = 1_500
"""A gap between two looks from which on the parent must have stood still itself."""

REAP_MS: Final = 1_000
"""How long a killed process may take to end before its partitions lose their leader."""

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 30_000

FIRST_REPORT_MS: Final = 30_000
"""How long a new process may take to report for the first time. On a busy machine Python needs
seconds to import a broker; killed for that, it would be killed at every start."""

BUSY_MS: Final = 30_000
"""How long a process may be silent while it uses the processor: an endless loop ends, too."""

LOOK_MS: Final = 1_000
"""Over which time a silent process has to use the processor to count as busy."""

BUSY_SHARE: Final = 10
"""It is busy if it used a tenth of this time: a machine with many busy processes gives no more."""

STABLE_MS: Final = 60_000
"""A process that served this long did not die early: the pause before its restart is short."""


class ProcessState(Enum):
    """The state of one broker process."""

    STARTING = "starting"
    """It runs, and does not serve clients yet."""
    SERVING = "serving"
    """It serves clients."""
    STOPPING = "stopping"
    """It was asked to stop."""
    KILLED = "killed"
    """It got SIGKILL and has not been reaped."""
    DEAD = "dead"
    """There is no process."""


class Deed(Enum):
    """What the parent does with one broker."""

    START = auto()
    """Start a process for it."""
    KILL = auto()
    """Send SIGKILL to its process."""
    STOP = auto()
    """Ask its process to stop cleanly."""
    SUSPEND = auto()
    """Its partitions have no leader until its process is reaped."""
    FAIL_OVER = auto()
    """Its process is reaped: others may lead its partitions."""


class Action(NamedTuple):
    """Something for the parent to do."""

    deed: Deed
    broker_id: int


@dataclass(slots=True, eq=False, repr=False)
class BrokerProcess:
    """What the parent knows about one broker."""

    broker_id: int
    state: ProcessState = ProcessState.DEAD
    deadline_ms: int | None = None
    """When silence ends in a kill, a kill in a suspension, or a pause in a restart."""
    heard_ms: int = 0
    """When it was heard last."""
    look: tuple[int, int] | None = None
    """The time, and the processor time that it had used, since it is about to be killed."""
    is_held: bool = False
    """Whether it stays dead until an operator restarts it."""
    is_suspended: bool = False
    restarts: int = 0
    serving_since_ms: int | None = None
    _pause_ms: int = FIRST_PAUSE_MS

    def __repr__(self) -> str:
        return f"BrokerProcess({self.broker_id}, {self.state.value})"

    def next_pause_ms(self, now_ms: int) -> int:
        """The pause before the next restart; it doubles while the process keeps dying early."""
        served_since = self.serving_since_ms
        if served_since is not None and now_ms - served_since >= STABLE_MS:
            self._pause_ms = FIRST_PAUSE_MS
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)
        return pause_ms


class Supervision:
    """The rules for all brokers of one parent."""

    def __init__(
        self,
        broker_ids: list[int],
        *,
        session_timeout_ms: int,
        now_ms: int,
        processor_ms: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """`processor_ms` is the processor time of a broker's process, None where unknown."""
        self.processes: Final = {each: BrokerProcess(each) for each in broker_ids}
        self._session_timeout_ms = session_timeout_ms
        self._processor_ms = processor_ms
        self._looked_ms = now_ms
        self._is_stopping = False

    # -- what the parent wants --------------------------------------------------------------------

    def start_all(self) -> list[Action]:
        """Starts every broker that has no process."""
        return [action for each in self.processes.values() for action in self._start(each)]

    def stop_all(self, now_ms: int, *, patience_ms: int) -> list[Action]:
        """Asks every broker to stop, and starts none from now on."""
        self._is_stopping = True
        actions: list[Action] = []
        for each in self.processes.values():
            if each.state is ProcessState.DEAD:
                each.deadline_ms = None
            actions += self._stop(each, now_ms, patience_ms)
        return actions

    def stop(self, broker_id: int, now_ms: int, *, patience_ms: int) -> list[Action]:
        """Asks one broker to stop; it is killed if it takes longer, and then started again."""
        return self._stop(self.processes[broker_id], now_ms, patience_ms)

    def kill(self, broker_id: int, now_ms: int, *, hold: bool) -> list[Action]:
        """Kills a broker; with `hold` it stays dead until `restart`."""
        process = self.processes[broker_id]
        process.is_held = hold or process.is_held
        if process.state is ProcessState.DEAD:
            if hold:
                process.deadline_ms = None
            return []
        return self._kill(process, now_ms)

    def restart(self, broker_id: int) -> list[Action]:
        """Starts a broker that is dead, now; one that is about to die follows when it is reaped."""
        process = self.processes[broker_id]
        process.is_held = False
        return self._start(process)

    # -- what happened ----------------------------------------------------------------------------

    def on_heartbeat(self, broker_id: int, now_ms: int) -> None:
        """A broker has reported; while it stops, that does not extend its time."""
        process = self.processes[broker_id]
        if process.state in (ProcessState.STARTING, ProcessState.SERVING):
            process.deadline_ms = now_ms + self._session_timeout_ms
            process.heard_ms, process.look = now_ms, None

    def on_started(self, broker_id: int, now_ms: int) -> None:
        """The process of a broker exists."""
        process = self.processes[broker_id]
        assert process.state is ProcessState.STARTING, f"{process} was not to be started"
        process.deadline_ms = now_ms + max(FIRST_REPORT_MS, self._session_timeout_ms)
        process.heard_ms, process.look = now_ms, None

    def on_serving(self, broker_id: int, now_ms: int) -> None:
        """A broker serves clients."""
        process = self.processes[broker_id]
        if process.state is ProcessState.STARTING:
            process.state = ProcessState.SERVING
            process.serving_since_ms = now_ms
            self.on_heartbeat(broker_id, now_ms)

    def on_reaped(self, broker_id: int, now_ms: int) -> list[Action]:
        """The process of a broker has ended and was waited for, whatever the reason."""
        process = self.processes[broker_id]
        assert process.state is not ProcessState.DEAD, f"{process} has no process to reap"
        process.state = ProcessState.DEAD
        process.is_suspended = False
        process.deadline_ms = None
        if not (self._is_stopping or process.is_held):
            process.deadline_ms = now_ms + process.next_pause_ms(now_ms)
        process.serving_since_ms = None
        return [Action(Deed.FAIL_OVER, broker_id)]

    def on_time(self, now_ms: int) -> list[Action]:
        """Looks at every deadline; to be called every `HEARTBEAT_MS`."""
        gap_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        if not 0 <= gap_ms < STOOD_STILL_MS:
            self._restart_deadlines(now_ms, gap_ms)
            return []
        actions: list[Action] = []
        for each in self.processes.values():
            if each.deadline_ms is None:
                continue
            if each.look is None and now_ms >= each.deadline_ms - LOOK_MS:
                self._look(each, now_ms)
            if now_ms >= each.deadline_ms:
                actions += self._on_deadline(each, now_ms)
        return actions

    # -- rules ------------------------------------------------------------------------------------

    def _restart_deadlines(self, now_ms: int, gap_ms: int) -> None:
        for each in self.processes.values():
            if each.deadline_ms is None:
                continue
            if each.state in (ProcessState.STARTING, ProcessState.SERVING):
                session_ends_ms = now_ms + self._session_timeout_ms
                each.deadline_ms = max(each.deadline_ms + gap_ms, session_ends_ms)
                each.heard_ms, each.look = now_ms, None
            else:
                each.deadline_ms += gap_ms

    def _on_deadline(self, process: BrokerProcess, now_ms: int) -> list[Action]:
        if process.state is ProcessState.DEAD:
            return self._start(process)
        if process.state is ProcessState.KILLED:
            process.deadline_ms = None
            process.is_suspended = True
            return [Action(Deed.SUSPEND, process.broker_id)]
        if self._is_busy(process, now_ms):
            process.deadline_ms = now_ms + LOOK_MS
            self._look(process, now_ms)
            return []
        return self._kill(process, now_ms)

    def _look(self, process: BrokerProcess, now_ms: int) -> None:
        used_ms = self._processor_ms(process.broker_id)
        process.look = None if used_ms is None else (now_ms, used_ms)

    def _is_busy(self, process: BrokerProcess, now_ms: int) -> bool:
        """Whether a silent process used the processor since the last look, and may still do so."""
        used_ms = self._processor_ms(process.broker_id)
        if (
            process.state not in (ProcessState.STARTING, ProcessState.SERVING)
            or process.look is None
            or used_ms is None
            or now_ms + LOOK_MS - process.heard_ms > BUSY_MS
        ):
            return False
        looked_ms, before_ms = process.look
        return (used_ms - before_ms) * BUSY_SHARE >= now_ms - looked_ms > 0

    def _start(self, process: BrokerProcess) -> list[Action]:
        if process.state is not ProcessState.DEAD or process.is_held or self._is_stopping:
            return []
        process.state = ProcessState.STARTING
        process.deadline_ms = None
        process.restarts += 1
        return [Action(Deed.START, process.broker_id)]

    def _stop(self, process: BrokerProcess, now_ms: int, patience_ms: int) -> list[Action]:
        if process.state not in (ProcessState.STARTING, ProcessState.SERVING):
            return []
        process.state = ProcessState.STOPPING
        process.deadline_ms = now_ms + patience_ms
        return [Action(Deed.STOP, process.broker_id)]

    def _kill(self, process: BrokerProcess, now_ms: int) -> list[Action]:
        if process.state is ProcessState.KILLED:
            return []
        process.state = ProcessState.KILLED
        process.deadline_ms = now_ms + REAP_MS
        return [Action(Deed.KILL, process.broker_id)]
