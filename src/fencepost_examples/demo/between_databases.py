"""`fencepost demo --postgres`: refunds are requested in PostgreSQL, and paid in PostgreSQL.

Theory of operation. Around the application of the plain demo there are more programs: PostgreSQL,
two services that write requests with their events, and the outbox relay. All of them end when they
are killed or lose what they need, and the demo starts them again, as a supervisor would.

The services stay a few batches ahead of the decisions, so that there is work for everybody while
things are killed, on a slow machine too: a file says how many requests they may write. When they
are done, the relay carries what is left and ends; another file then tells the application to read
what is left, and to end too. The audit compares tables and topics.

The relay is killed while it writes to Kafka. PostgreSQL is killed then, and in turn with that while
a batch of payments is on its way into the database.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from fencepost.base.failures import FencepostError
from fencepost.client.blocking import connect
from fencepost.outside.connection import Database
from fencepost_examples.demo.cluster import TopicWatcher
from fencepost_examples.demo.plan import OF_DATABASES, Aim, Kill, Victim
from fencepost_examples.demo.postgres import OwnPostgres
from fencepost_examples.demo.processes import Program, last_error_line
from fencepost_examples.demo.run import EXECUTORS, Demo
from fencepost_examples.refunds.postgres.tables import DSN_VARIABLE, OUTBOX, PAYING, create_tables
from fencepost_examples.refunds.spark.audit import Findings
from fencepost_examples.refunds.spark.fill import create_topics
from fencepost_examples.refunds.spark.settlements import EXACTLY_ONCE

SERVICES: Final = 2
ROWS_PER_CHUNK: Final = 200
"""Small transactions of the relay, so that a kill finds one that is open."""
BATCHES_AHEAD: Final = 2
MOST_STARTS: Final = 60
"""How often a program is started before the demo gives up."""


class DemoBetweenDatabases(Demo):
    """One run of it."""

    def __init__(self, *arguments: Any, server: Path) -> None:
        super().__init__(*arguments)
        self._closed = self._folder / "closed"
        self._allowed = self._folder / "allowed"
        self._payments = self._folder / "checkpoint" / PAYING / "offsets"
        self._postgres = OwnPostgres(self._supervisor, server)
        self._services: list[Program] = []
        self._relay: Program | None = None
        self._is_last_relay = False
        self._starts = 0

    # Before the queries.

    def _find_brokers(self) -> None:
        super()._find_brokers()
        self._postgres.start()
        self._supervisor.share(DSN_VARIABLE, self._postgres.dsn)
        self._display.say(f"PostgreSQL serves at {self._postgres.address}")

    def _write_settlements(self) -> None:
        create_tables(Database(self._postgres.dsn))
        with connect(self._address) as cluster:
            create_topics(cluster, self._topics.values())
        self._allow(0)
        self._relay = self._start_relay()
        self._services = [self._start_service(number) for number in range(SERVICES)]
        self._display.say(
            f"{SERVICES} services write {self._options.settlements:,} requests, and a relay "
            "carries them to Kafka"
        )

    def _start_relay(self) -> Program:
        command = [sys.executable, "-m", "fencepost", "outbox", "relay"]
        command += ["--transactional-id", OUTBOX.transactional_id, "--chunk", str(ROWS_PER_CHUNK)]
        command += ["--bootstrap-servers", self._address]
        return self._begin("relay", command + ["--until-caught-up"] * self._is_last_relay)

    def _start_service(self, number: int) -> Program:
        options = ["--requests", str(self._options.settlements), "--number", str(number)]
        options += ["--services", str(SERVICES), "--topic", self._topics[EXACTLY_ONCE].settlements]
        options += ["--allowed", str(self._allowed)]
        return self._begin(f"service-{number}", self._module("service", options))

    def _module(self, name: str, options: list[str]) -> list[str]:
        return [sys.executable, "-m", f"fencepost_examples.refunds.postgres.{name}", *options]

    def _begin(self, name: str, command: list[str]) -> Program:
        self._starts += 1
        if self._starts > MOST_STARTS:
            log = self._supervisor.log_of(name)
            raise FencepostError(f"the {name} does not stay alive: {last_error_line(log)}")
        return self._supervisor.start(name, command)

    # The queries.

    def _start_application(self) -> Program:
        options = ["--bootstrap-servers", self._address, "--prefix", self._prefix]
        options += ["--checkpoint", str(self._folder / "checkpoint"), "--master", EXECUTORS]
        options += ["--per-batch", str(self._options.per_batch), "--until", str(self._closed)]
        return self._supervisor.start("pipeline", self._module("pipeline", options))

    @property
    def _victims(self) -> tuple[Victim, ...]:
        return super()._victims + OF_DATABASES

    def _decided(self) -> dict[str, int]:
        # The markers of the relay's transactions have offsets, too.
        total = self._options.settlements
        return {side: min(count, total) for side, count in super()._decided().items()}

    def _written(self, planned: Kill, watcher: TopicWatcher) -> int | None:
        if planned.victim is Victim.DATABASE and planned.aim is Aim.COORDINATOR:
            # Spark writes a file when a batch begins.
            return sum(1 for _ in self._payments.glob("*"))
        if planned.victim in OF_DATABASES:
            return watcher.size(self._topics[planned.side].settlements)
        return super()._written(planned, watcher)

    def _sample(self) -> float:
        self._tend()
        share = super()._sample()
        self._allow(round(share * self._options.settlements))
        return share

    def _allow(self, decided: int) -> None:
        """Lets the services write as many requests as keep them ahead."""
        new = self._allowed.with_suffix(".new")
        new.write_text(str(decided + BATCHES_AHEAD * self._options.per_batch))
        new.rename(self._allowed)

    def _tend(self) -> None:
        """Starts again what has ended; ends what has nothing left to do."""
        for number, service in enumerate(self._services):
            if service.exit_code not in (None, 0):
                self._services[number] = self._start_service(number)
        if self._relay is None:
            return
        if self._relay.exit_code == 0 and self._is_last_relay:
            self._relay = None
            self._closed.touch()
            self._display.say("all requests are in Kafka")
        elif self._relay.exit_code is not None:
            self._display.say(f"the relay starts again: {last_error_line(self._relay.log)}")
            self._relay = self._start_relay()
        elif not self._is_last_relay and all(each.exit_code == 0 for each in self._services):
            self._is_last_relay = True
            self._relay.kill_all()
            self._relay = self._start_relay()

    def _kill_victim(self, victim: Victim, program: Program, outage_ms: int = 0) -> None:
        if victim is Victim.RELAY:
            if self._relay is not None:
                self._history.kills.append((self._clock.seconds, victim))
                self._relay.kill_all()
                self._display.say("kill -9: the relay")
                self._relay = self._start_relay()
        elif victim is Victim.DATABASE:
            self._history.kills.append((self._clock.seconds, victim))
            self._postgres.kill()
            self._display.say("kill -9: PostgreSQL")
            time.sleep(outage_ms / 1000)
            self._postgres.start()
        else:
            super()._kill_victim(victim, program, outage_ms)

    # After the queries.

    def _audit(self) -> None:
        self._display.phase("tables and topics are compared on Spark")
        report = self._folder / "report.json"
        options = ["--bootstrap-servers", self._address, "--prefix", self._prefix]
        options += ["--requests", str(self._options.settlements), "--report", str(report)]
        program = self._supervisor.start("audit", self._module("audit", options))
        while program.exit_code is None:
            time.sleep(0.1)
        if not report.exists():
            raise FencepostError(f"the audit failed: {last_error_line(program.log)}")
        answers = json.loads(report.read_text())
        self._history.findings = {side: Findings(**answer) for side, answer in answers.items()}
