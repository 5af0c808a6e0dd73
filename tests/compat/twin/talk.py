"""A script's side of the conversation: the steps it sends, and a record of the replies."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from fencepost.wire.apis import API, BY_NUMBER, ApiKey
from fencepost.wire.forms.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from fencepost.wire.forms.describe_transactions import DescribeTransactionsRequest
from fencepost.wire.forms.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from fencepost.wire.forms.metadata import MetadataRequest
from tests.broker.raw import ClosedError, RawClient
from tests.compat.twin.likeness import Likeness, differences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.compat.conftest import Side

COMPATIBILITY: Final = Path(__file__).parents[3] / "docs" / "compatibility.md"
PATIENCE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.01
CLOSED: Final = "the connection is closed"
SILENCE: Final = "no answer"
SILENCE_SECONDS: Final = 1.0


class Ask(NamedTuple):
    """One request: an API and its form in the newest shape."""

    api: ApiKey
    form: Any
    version: int = -1
    """The default version; -1 for the newest one."""


class Step(NamedTuple):
    """The reply to one step of a script."""

    name: str
    reply: Any
    differs: str | None = None
    """The row of docs/compatibility.md that says why the two brokers differ here."""


NEWER: Final[Mapping[int, int]] = {
    ApiKey.API_VERSIONS: 5,
    ApiKey.TXN_OFFSET_COMMIT: 6,
    ApiKey.DELETE_GROUPS: 3,
}
"""Versions of Kafka 4.4, which the broker of the twin does not have."""


def newest_version(api: int) -> int:
    """The newest version that both brokers serve."""
    return NEWER.get(api, BY_NUMBER[api].max_version + 1) - 1


def versions(api: ApiKey) -> range:
    """All versions that both brokers serve."""
    return range(API[api].min_version, newest_version(api) + 1)


def _chosen(ask: Ask, version: int | None) -> int:
    if version is not None:
        return version
    return newest_version(ask.api) if ask.version < 0 else ask.version


class Later(NamedTuple):
    """A step that was sent and whose reply is not read yet."""

    name: str
    ask: Ask
    version: int
    connection: str
    correlation_id: int


class Talk:
    """One script talking to one broker."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.transcript: list[Step] = []
        self._connections: dict[str, RawClient] = {}
        brokers = self.quiet(Ask(ApiKey.METADATA, MetadataRequest(topics=[]))).brokers
        self.node_id: int = brokers[0].node_id
        self.eyes = Likeness(self.node_id)

    # -- steps
    # ---------------------------------------------------------------------------------------------

    def ask(
        self,
        step: str,
        ask: Ask,
        version: int | None = None,
        *,
        on: str = "first",
        differs: str | None = None,
        see: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Sends a request and records the reply, or `see` of it; returns the whole reply."""
        return self.receive(self.send(step, ask, version, on=on), differs=differs, see=see)

    def send(self, step: str, ask: Ask, version: int | None = None, *, on: str = "first") -> Later:
        """Sends a request whose reply may depend on later requests."""
        chosen = _chosen(ask, version)
        correlation_id = self._connection(on).send(ask.api, chosen, ask.form)
        return Later(step, ask, chosen, on, correlation_id)

    def receive(
        self, later: Later, *, differs: str | None = None, see: Callable[[Any], Any] | None = None
    ) -> Any:
        """Reads the reply to a request that was sent, and records it under the name of its step."""
        try:
            reply = self._connection(later.connection).reply(
                later.ask.api, later.version, later.correlation_id
            )
        except ClosedError:
            self._connections.pop(later.connection).close()
            self.note(later.name, CLOSED, differs=differs)
            return None
        self.note(later.name, reply if see is None else see(reply), differs=differs)
        return reply

    def ask_in_vain(self, step: str, ask: Ask, version: int | None = None, *, differs: str) -> None:
        """Records whether a request was answered after a while; one of the brokers never does."""
        with RawClient(self.side.bootstrap_servers) as client:
            client._socket.settimeout(SILENCE_SECONDS)
            try:
                client.call(ask.api, _chosen(ask, version), ask.form)
            except TimeoutError:
                self.note(step, SILENCE, differs=differs)
            else:
                self.note(step, "an answer", differs=differs)

    def note(self, step: str, value: Any, *, differs: str | None = None) -> None:
        """Records any other value that must be equal."""
        self.transcript.append(Step(step, self.eyes.of(value), differs))

    def note_bytes(
        self, step: str, frame: bytes, *, start: int = 4, end: int | None = None, on: str = "first"
    ) -> None:
        """Sends any bytes; records part of the reply after its correlation id, or a disconnect."""
        client = self._connection(on)
        client.send_bytes(frame)
        try:
            self.transcript.append(Step(step, client.read_frame()[start:end]))
        except ClosedError:
            self._connections.pop(on).close()
            self.transcript.append(Step(step, CLOSED))

    # -- requests that are not compared
    # ------------------------------------------------------------------------------

    def quiet(self, ask: Ask, version: int | None = None, *, on: str = "first") -> Any:
        """A request whose reply is not compared."""
        chosen = _chosen(ask, version)
        return self._connection(on).call(ask.api, chosen, ask.form)

    def until(self, ask: Ask, holds: Callable[[Any], bool], version: int | None = None) -> Any:
        """Repeats a request until the reply is as expected; returns the reply."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds(reply := self.quiet(ask, version)):
            assert time.monotonic() < deadline, f"{self.side.name} still replies {reply}"
            time.sleep(POLL_SECONDS)
        return reply

    def settle(self, *transactional_ids: str) -> None:
        """Waits until no transaction of these ids is between Prepare and Complete."""
        wanted = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
        self.until(
            Ask(ApiKey.DESCRIBE_TRANSACTIONS, wanted),
            lambda reply: (
                not any(
                    state.transaction_state.startswith("Prepare")
                    for state in reply.transaction_states
                )
            ),
        )

    def topic(
        self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> bytes:
        """Creates a topic, waits until it can be used, and returns its id."""
        configs = [CreatableTopicConfig(name=k, value=v) for k, v in (settings or {}).items()]
        wanted = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)
        (made,) = self.quiet(Ask(ApiKey.CREATE_TOPICS, request)).topics
        assert made.error_code == 0, made
        self.await_topic(name, partitions)
        topic_id: bytes = made.topic_id
        self.eyes.of(
            topic_id, "topic_id"
        )  # It is numbered now, whatever the order of later replies.
        return topic_id

    def await_topic(self, name: str, partitions: int = 1) -> None:
        """A broker may answer before every part of it knows the topic."""
        asked = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(partitions)]
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)]
        )
        self.until(
            Ask(ApiKey.LIST_OFFSETS, request),
            lambda reply: all(p.error_code == 0 for t in reply.topics for p in t.partitions),
        )

    # -- connections
    # ---------------------------------------------------------------------------------------

    def _connection(self, name: str) -> RawClient:
        if name not in self._connections:
            self._connections[name] = RawClient(self.side.bootstrap_servers)
        return self._connections[name]

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Twins:
    """The two brokers, and a run of a script on both at once."""

    def __init__(self, theirs: Side, ours: Side) -> None:
        self.theirs = theirs
        self.ours = ours

    def compare(self, script: Callable[[Talk], None], *, at_once: bool = True) -> None:
        """Fails with every difference of the transcripts that no row of the table explains.

        A script that uses Kafka's tools runs on one broker after the other: the tools share a
        JVM.
        """
        with ThreadPoolExecutor(2 if at_once else 1) as pool:
            runs = [pool.submit(_run, script, side) for side in (self.theirs, self.ours)]
            theirs, ours = (run.result() for run in runs)
        assert theirs, "a script without a step compares nothing"
        problems = list(compare_transcripts(theirs, ours))
        assert not problems, "\n".join(["the two brokers differ:", *problems])


def _run(script: Callable[[Talk], None], side: Side) -> list[Step]:
    with Talk(side) as talk:
        script(talk)
        return talk.transcript


def compare_transcripts(theirs: Sequence[Step], ours: Sequence[Step]) -> list[str]:
    """A line for each difference that no row of the table explains."""
    problems = []
    if [step.name for step in theirs] != [step.name for step in ours]:
        problems.append(
            f"the steps differ: {[step.name for step in theirs]}, {[step.name for step in ours]}"
        )
    for kafka, fencepost in zip(theirs, ours, strict=False):
        found = list(differences(kafka.reply, fencepost.reply))
        row = kafka.differs
        if row is None:
            problems += [f"  {kafka.name}: {line}" for line in found]
        elif not found:
            problems.append(f"  {kafka.name}: no difference, but {row!r} is declared as one")
        elif row not in listed_differences():
            problems.append(f"  {kafka.name}: {row!r} is not in {COMPATIBILITY.name}")
    return problems


@cache
def listed_differences() -> frozenset[str]:
    """The first column of the table of differences."""
    _, _, section = COMPATIBILITY.read_text().partition("## Deliberate differences in behaviour")
    return frozenset(re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE))
