"""Kafka's Java tools and our own Java programs, all in one JVM.

The JVM starts with the first call and serves one call after the other
(tests/compat/java/ToolHost.java). A call that times out ends it; the next call starts a new one.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, Any, Final, Self

from tools.apache_kafka import java_command
from tools.processes import die_with_the_parent

CALL_SECONDS: Final = 120.0

TOOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kafka-topics": "org.apache.kafka.tools.TopicCommand",
        "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
        "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
        "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
        "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
        "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
        "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
        "kafka-configs": "kafka.admin.ConfigCommand",
        "kafka-acls": "org.apache.kafka.tools.AclCommand",
        "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
        "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
        "kafka-features": "org.apache.kafka.tools.FeatureCommand",
        "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
        "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
        "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
        "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
        "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
        "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
        "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    }
)
"""The scripts of Kafka's bin folder and their classes."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a main method."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class JavaTools:
    """Runs main methods by the name of their script or class."""

    def __init__(self, *, newest_client: bool = False) -> None:
        """`newest_client` uses the newest Java client instead of the broker's own."""
        self._newest_client = newest_client
        self._machine: subprocess.Popen[str] | None = None

    def run(
        self, name: str, *arguments: str, stdin: str = "", seconds: float = CALL_SECONDS
    ) -> ToolResult:
        """Runs one main method to its end, successful or not."""
        request = {"main": TOOLS.get(name, name), "args": list(arguments), "stdin": stdin}
        machine = self._running()
        # Reading a pipe has no timeout: a timer that kills the JVM ends the read as well.
        timer = threading.Timer(seconds, machine.kill)
        timer.start()
        try:
            answer = _ask(machine, json.dumps(request))
        finally:
            timer.cancel()
        if answer is None:
            self.close()
            raise TimeoutError(f"{name} {' '.join(arguments)} did not end within {seconds:.0f} s")
        return ToolResult(int(answer["code"]), str(answer["out"]), str(answer["err"]))

    def check(
        self, name: str, *arguments: str, stdin: str = "", seconds: float = CALL_SECONDS
    ) -> str:
        """Runs one main method that must succeed, and returns its output."""
        result = self.run(name, *arguments, stdin=stdin, seconds=seconds)
        if result.code != 0:
            raise AssertionError(f"{name} ended with {result.code}:\n{result.out}\n{result.err}")
        return result.out

    def close(self) -> None:
        """Stops the JVM."""
        machine, self._machine = self._machine, None
        if machine is None:
            return
        machine.kill()
        machine.wait()
        for stream in (machine.stdin, machine.stdout):
            if stream is not None:
                stream.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._machine is None or self._machine.poll() is not None:
            self.close()
            self._machine = subprocess.Popen(
                java_command("ToolHost", newest_client=self._newest_client),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                preexec_fn=die_with_the_parent,  # noqa: PLW1509 - only one system call.
            )
        return self._machine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ask(machine: subprocess.Popen[str], request: str) -> dict[str, Any] | None:
    to, back = _pipes(machine)
    try:
        to.write(request + "\n")
        to.flush()
        line = back.readline()
    except BrokenPipeError:
        return None
    answer: dict[str, Any] | None = json.loads(line) if line else None
    return answer


def _pipes(machine: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert machine.stdin is not None
    assert machine.stdout is not None
    return machine.stdin, machine.stdout
