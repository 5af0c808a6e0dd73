"""The whole run of the demo."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fencepost.base.failures import FencepostError
from fencepost.client.blocking import connect
from fencepost.spark.installation import ExtraMissing, prepare
from fencepost_examples.demo.cluster import (
    SHORT_TIMEOUTS,
    OwnBroker,
    TopicWatcher,
    delete_topics,
    require_brokers,
    unique_prefix,
)
from fencepost_examples.demo.display import Clock, Display
from fencepost_examples.demo.folder import environment_in, folder_of
from fencepost_examples.demo.interrupt import Interruption
from fencepost_examples.demo.plan import (
    BROKER_VICTIMS,
    IN_TURN,
    IN_TURN_OF_SEVERAL,
    PAUSE_MS,
    Kill,
    Victim,
    plan_kills,
    plan_loader_kill,
    sides_of,
)
from fencepost_examples.demo.processes import Program, Supervisor, last_error_line
from fencepost_examples.demo.progress import count_decided
from fencepost_examples.demo.sessions import kill
from fencepost_examples.demo.several_brokers import OwnCluster, choose
from fencepost_examples.refunds.spark.audit import Findings
from fencepost_examples.refunds.spark.fill import create_topics, write_settlements
from fencepost_examples.refunds.spark.loader import UNFINISHED
from fencepost_examples.refunds.spark.pipeline import ledger_topic, transactional_id
from fencepost_examples.refunds.spark.settlements import EXACTLY_ONCE, Topics

EXECUTORS: Final = "local-cluster[2,1,1024]"
"""Two executors as processes, with one core each; Spark's cluster mode for one machine."""

FAILURES_IN_A_ROW: Final = 4
"""How often a query that fails without progress is restarted before the demo gives up."""

SAMPLE_SECONDS: Final = 0.1
"""How often to read the progress of the queries."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of a run."""

    settlements: int
    per_batch: int
    kills: int
    seed: int
    compare: bool = True
    daily_limit: bool = False
    bootstrap_servers: str | None = None
    brokers: int = 1
    """How many brokers to start, if none are given."""
    postgres: bool = False
    """Whether refunds are requested and paid in PostgreSQL."""
    keep: Path | None = None

    @property
    def sides(self) -> tuple[str, ...]:
        """The queries to run."""
        return sides_of(compare=self.compare)


@dataclass(slots=True)
class History:
    """What happened during a run, for report and picture."""

    samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    kills: list[tuple[float, Victim]] = field(default_factory=list)
    findings: dict[str, Findings] = field(default_factory=dict)
    queries_ended: float = 0
    """When the queries were done and the load began."""
    seconds: float = 0

    def killed(self) -> Counter[Victim]:
        """Returns how often each victim was killed."""
        return Counter(victim for _, victim in self.kills)


def require_spark() -> None:
    """Raises FencepostError with what to install if Spark or Java is missing."""
    try:
        prepare()
    except ExtraMissing as problem:
        raise FencepostError(
            f"the demo runs a pipeline on Spark: {problem}. For a smaller demo without Spark, pip "
            "install confluent-kafka and run fencepost demo --broker-only"
        ) from problem


def run_demo(options: DemoOptions, display: Display, clock: Clock) -> History:
    """Runs the demo. Leaves no process and no temporary file behind."""
    require_spark()
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        folder = stack.enter_context(folder_of(options.keep, interruption))
        deletes = [] if options.keep else [folder]
        more: dict[str, Path] = {}
        demo: Callable[..., Demo] = Demo
        if options.postgres:
            from fencepost_examples.demo.between_databases import DemoBetweenDatabases
            from fencepost_examples.demo.postgres import folder_of_server

            demo = DemoBetweenDatabases
            keeps = options.keep is not None
            server = stack.enter_context(folder_of_server(folder, interruption, keeps=keeps))
            more["server"] = server
            deletes += [] if keeps else [server]
        supervisor = stack.enter_context(
            Supervisor(interruption, folder, environment_in(folder), deletes=deletes)
        )
        return demo(options, display, clock, supervisor, folder, stack, **more).run()


class Demo:
    """One run."""

    def __init__(
        self,
        options: DemoOptions,
        display: Display,
        clock: Clock,
        supervisor: Supervisor,
        folder: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self._options = options
        self._display = display
        self._clock = clock
        self._supervisor = supervisor
        self._folder = folder
        self._stack = stack
        self._broker: OwnBroker | None = None
        self._own_cluster: OwnCluster | None = None
        self._prefix = ""
        self._address = ""
        self._rng = random.Random(options.seed)
        self._history = History()

    def run(self) -> History:
        """Runs the queries, kills by plan, and audits the output."""
        self._find_brokers()
        self._write_settlements()
        watcher = TopicWatcher(self._address)
        self._stack.callback(watcher.close)
        self._run_queries(self._plan(), watcher)
        self._history.queries_ended = self._clock.seconds
        self._audit()
        self._history.seconds = self._clock.seconds
        return self._history

    # Before the queries.

    def _find_brokers(self) -> None:
        given = self._options.bootstrap_servers
        if given is not None:
            require_brokers(given)
            self._address, self._prefix = given, unique_prefix()
            self._display.say(f"using the brokers at {given}; they will not be killed")
            return
        if self._options.brokers > 1:
            self._start_cluster()
            return
        self._broker = OwnBroker(self._supervisor, self._folder / "broker")
        self._broker.start()
        self._address = self._broker.address
        self._display.say(f"a broker serves at {self._address}")

    def _start_cluster(self) -> None:
        brokers = self._options.brokers
        self._own_cluster = OwnCluster(self._supervisor, self._folder / "broker", brokers)
        self._own_cluster.start()
        self._address = self._own_cluster.address
        self._display.say(f"{brokers} brokers serve at {self._address}")

    @property
    def _topics(self) -> dict[str, Topics]:
        return {side: Topics.of(side, self._prefix) for side in self._options.sides}

    def _write_settlements(self) -> None:
        topics = self._topics
        with connect(self._address) as cluster:
            create_topics(cluster, topics.values())
            if self._options.bootstrap_servers is not None:
                self._stack.callback(self._delete_topics)
            write_settlements(cluster, topics[EXACTLY_ONCE].settlements, self._options.settlements)
        self._display.say(f"{self._options.settlements:,} settlements are written")

    def _delete_topics(self) -> None:
        with contextlib.suppress(FencepostError), connect(self._address, SHORT_TIMEOUTS) as cluster:
            delete_topics(cluster, self._topics.values(), ledger_topic(self._prefix))

    def _plan(self) -> deque[Kill]:
        options = self._options
        share = options.per_batch / options.settlements
        return deque(plan_kills(options.seed, options.kills, self._victims, options.sides, share))

    @property
    def _victims(self) -> tuple[Victim, ...]:
        if self._options.bootstrap_servers is not None:
            return tuple(victim for victim in IN_TURN if victim is not Victim.BROKER)
        return IN_TURN_OF_SEVERAL if self._own_cluster else IN_TURN

    # The queries.

    def _run_queries(self, kills: deque[Kill], watcher: TopicWatcher) -> None:
        """Starts the application again until it has read everything."""
        failures = 0
        while True:
            before = self._decided()
            self._display.phase("Spark starts: a driver and two executors")
            program = self._start_application()
            code = self._watch(program, kills, watcher)
            if code == 0:
                return
            if code is None:
                continue
            failures = 1 if self._decided() != before else failures + 1
            if failures == FAILURES_IN_A_ROW:
                raise FencepostError(f"the query makes no progress: {last_error_line(program.log)}")
            self._display.say(
                f"the driver failed and is started again: {last_error_line(program.log)}"
            )

    def _start_application(self) -> Program:
        options = ["--bootstrap-servers", self._address, "--prefix", self._prefix]
        options += ["--checkpoint", str(self._folder / "checkpoint"), "--master", EXECUTORS]
        options += ["--per-batch", str(self._options.per_batch)]
        return self._start("pipeline", options)

    def _start(self, module: str, options: list[str]) -> Program:
        sides = [word for side in self._options.sides for word in ("--writing", side)]
        variant = ["--daily-limit"] if self._options.daily_limit else []
        command = [sys.executable, "-m", f"fencepost_examples.refunds.spark.{module}"]
        return self._supervisor.start(module, [*command, *options, *sides, *variant])

    def _watch(self, program: Program, kills: deque[Kill], watcher: TopicWatcher) -> int | None:
        """Kills by plan until the application ends.

        Returns its exit code; None if it was killed.
        """
        while (code := program.exit_code) is None:
            share = self._sample()
            if kills and share >= kills[0].share and self._await_moment(program, kills[0], watcher):
                planned = kills.popleft()
                self._strike(planned, program, watcher)
                if planned.victim is Victim.DRIVER:
                    return None
            time.sleep(SAMPLE_SECONDS)
        self._sample()
        return code

    def _decided(self) -> dict[str, int]:
        checkpoint = self._folder / "checkpoint"
        return {side: count_decided(checkpoint / side) for side in self._options.sides}

    def _sample(self) -> float:
        """Shows and records the progress; returns the share of the query that is ahead."""
        decided = self._decided()
        samples = self._history.samples
        if samples and samples[-1][1] != decided:
            self._display.phase("settlements are decided")
        self._display.progress(decided, self._options.settlements)
        samples.append((self._clock.seconds, decided))
        return max(decided.values()) / self._options.settlements

    def _await_moment(self, program: Program, planned: Kill, watcher: TopicWatcher) -> bool:
        """Waits until a batch is being written; False if there is nothing to kill then."""
        before = self._written(planned, watcher)
        next_sample = time.monotonic()
        while program.exit_code is None and self._written(planned, watcher) == before:
            if time.monotonic() >= next_sample:
                next_sample = time.monotonic() + SAMPLE_SECONDS
                self._sample()
                if self._decided()[planned.side] == self._options.settlements:
                    break
            time.sleep(0.005)
        time.sleep(planned.delay_ms / 1000)
        if planned.victim is Victim.EXECUTOR and not program.executors():
            return False
        return program.exit_code is None

    def _written(self, planned: Kill, watcher: TopicWatcher) -> int | None:
        """A number that changes when the moment of this kill has come."""
        return watcher.size(self._topics[planned.side].audit)

    def _strike(self, planned: Kill, program: Program, watcher: TopicWatcher) -> None:
        """Carries out a part of the plan."""
        if self._own_cluster is not None and planned.victim in BROKER_VICTIMS:
            self._strike_one_of(self._own_cluster, planned, watcher)
        else:
            self._kill_victim(planned.victim, program, planned.outage_ms)

    def _strike_one_of(self, cluster: OwnCluster, planned: Kill, watcher: TopicWatcher) -> None:
        """Kills, pauses or rolls one of several brokers; returns when it serves again."""
        target = choose(
            planned.aim,
            watcher.cluster,
            cluster.serving(),
            transactional_id=transactional_id(self._prefix),
            topic=self._topics[planned.side].audit,
            rng=self._rng,
        )
        self._history.kills.append((self._clock.seconds, planned.victim))
        match planned.victim:
            case Victim.BROKER:
                self._display.say(f"kill -9: {target}")
                cluster.kill(target.broker_id, planned.outage_ms)
            case Victim.PAUSED_BROKER:
                pause_ms = PAUSE_MS + planned.outage_ms
                self._display.say(f"pause for {pause_ms / 1000:.1f} s: {target}")
                cluster.pause(target.broker_id, pause_ms)
            case Victim.ROLLED_BROKER:
                self._display.say(f"roll: {target}")
                cluster.roll(target.broker_id)

    def _kill_victim(self, victim: Victim, program: Program, outage_ms: int = 0) -> None:
        self._history.kills.append((self._clock.seconds, victim))
        match victim:
            case Victim.DRIVER:
                program.kill_driver()
                self._display.say("kill -9: the driver")
            case Victim.EXECUTOR:
                executors = program.executors()
                self._rng.shuffle(executors)
                for executor in executors[:1]:
                    kill(executor)
                self._display.say("kill -9: an executor")
            case Victim.BROKER:
                assert self._broker is not None
                self._broker.kill()
                self._display.say("kill -9: the broker")
                time.sleep(outage_ms / 1000)
                self._broker.start()
            case Victim.LOADER:
                program.kill_all()
                self._display.say("kill -9: the loader")

    # After the queries.

    def _audit(self) -> None:
        self._display.phase("the topics are loaded into Parquet")
        report = self._folder / "report.json"
        program = self._start_audit(report)
        if self._options.kills and self._await_load(program):
            self._kill_victim(Victim.LOADER, program)
            self._display.phase("the topics are loaded into Parquet, and audited on Spark")
            program = self._start_audit(report)
        while program.exit_code is None:
            time.sleep(0.1)
        if not report.exists():
            raise FencepostError(f"the audit failed: {last_error_line(program.log)}")
        answers = json.loads(report.read_text())
        self._history.findings = {side: Findings(**answer) for side, answer in answers.items()}

    def _start_audit(self, report: Path) -> Program:
        """Starts the audit, which loads new records first."""
        report.unlink(missing_ok=True)
        options = ["--bootstrap-servers", self._address, "--prefix", self._prefix, "--load"]
        options += ["--warehouse", str(self._folder / "warehouse"), "--report", str(report)]
        return self._start("audit", [*options, "--checkpoint", str(self._folder / "checkpoint")])

    def _await_load(self, program: Program) -> bool:
        """Waits until the planned load is running; False if the program has ended before."""
        tables = sorted({topic for topics in self._topics.values() for topic in topics.schemas})
        planned = plan_loader_kill(self._options.seed, len(tables))
        unfinished = self._folder / "warehouse" / tables[planned.load] / UNFINISHED
        while program.exit_code is None and not unfinished.exists():
            time.sleep(0.005)
        time.sleep(planned.delay_ms / 1000)
        return program.exit_code is None
