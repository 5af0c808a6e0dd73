"""The exchanges of one transactional id, from the lines of a trace.

A line belongs to the id if it names it, or if it is about a producer id that a coordinator gave to
the id. Exchanges are told apart by broker, connection and correlation id. Requests between brokers
(WriteTxnMarkers in a broker's trace) have neither; their reply says how long it took, which leads
back to the request.

A request without a reply is *lost* when its connection closes, or when the process that would have
answered starts again; otherwise it still waits when the trace ends.

Several instances may use one id: that is how fencing begins. Clients use several connections each,
so an *instance* is the set of connections that share identities (producer id and epoch): a reply
gives an identity to the instance that asked, and a request with an identity comes from the instance
that has it.

Markers between brokers are seen in a broker's trace only. Elsewhere they are inferred from the
partitions of a transaction that was ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fencepost.forensics.tap.wording import TopicNames, in_words, partitions_of
from fencepost.records.trace import TAP_STOPPED, Body

COORDINATOR_APIS: Final = frozenset(
    {"InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"}
)
_SAME_MARKER_US: Final = 5_000_000
"""A coordinator writes to its own partitions without a request, so some markers are inferred even
in a broker's trace: those that no request delivered around that time."""

Identity = tuple[int, int]
Key = tuple[object, object, object]


@dataclass(slots=True, eq=False)
class Call:
    """A request and, if it was answered, its reply."""

    request: Body
    broker: str
    words: str = ""
    instance: int = 0
    """The producer that sent it, counted from 1; 0 for a broker."""
    reply: Body | None = None
    partitions: list[str] = field(default_factory=list)
    lost_us: int | None = None
    """When its connection closed without a reply."""
    lost_reason: str = ""
    number: int = 0
    """Its place among the requests of the id, counted from 1."""

    @property
    def api(self) -> str:
        return str(self.request["api"])

    @property
    def time_us(self) -> int:
        return int(self.request["time_us"])

    @property
    def end_us(self) -> int | None:
        """When its reply came."""
        return None if self.reply is None else int(self.reply["time_us"])

    @property
    def over_us(self) -> int | None:
        """When its reply came or its connection closed; None while it waits."""
        return self.lost_us if self.reply is None else self.end_us

    @property
    def gets_reply(self) -> bool:
        """Whether a reply is due: there is none to Produce with acks 0."""
        return self.api != "Produce" or self.body.get("acks") != 0

    @property
    def is_answered(self) -> bool:
        """Whether it was answered without an error."""
        return self.reply is not None and not self.errors

    @property
    def connection(self) -> object:
        """The connection that it came on."""
        return _connection(self.request)

    @property
    def subjects(self) -> set[str]:
        """What it is about: requests of one API and with a subject in common may be retries."""
        return set(self.partitions) if self.api == "Produce" else {""}

    def repeats(self, earlier: Call) -> bool:
        """Whether the client sent it in place of an earlier one, on another connection."""
        return (
            (self.api, self.instance) == (earlier.api, earlier.instance)
            and self.time_us > earlier.time_us
            and self.connection != earlier.connection
            and not self.subjects.isdisjoint(earlier.subjects)
        )

    @property
    def errors(self) -> list[str]:
        return [] if self.reply is None else list(self.reply.get("errors", []))

    @property
    def body(self) -> Body:
        return self.request.get("body") or {}

    @property
    def answer(self) -> Body:
        return (self.reply or {}).get("body") or {}


@dataclass(frozen=True, slots=True)
class MarkerSeen:
    """A commit or abort marker in a partition."""

    time_us: int
    broker: str | None
    """Who leads the partition; None if the trace does not tell."""
    partition: str
    commit: bool
    source: str
    """`trace`, `log`, or `inferred` from the end of the transaction."""


class Span(NamedTuple):
    """A part of a trace, both ends included; None is without an end."""

    start_us: int | None = None
    end_us: int | None = None

    def holds(self, time_us: int) -> bool:
        """Whether a moment is in it."""
        is_early = self.start_us is not None and time_us < self.start_us
        is_late = self.end_us is not None and time_us > self.end_us
        return not (is_early or is_late)


@dataclass(slots=True)
class Story:
    """What happened to one transactional id, in the order of time.

    It is always told from the whole trace: a part would not show whose identity is whose. `span`
    limits what is shown.
    """

    transactional_id: str
    calls: list[Call]
    markers: list[MarkerSeen]
    clients: dict[int, str]
    """The client id of each instance."""
    leaders: dict[str, str]
    """The broker that each partition was written to."""
    producer_ids: set[int]
    trace_end_us: int = 0
    """The time of the last line of the trace."""
    span: Span = field(default_factory=Span)

    @property
    def shown_calls(self) -> list[Call]:
        """The calls that began in the span."""
        return [call for call in self.calls if self.span.holds(call.time_us)]

    @property
    def shown_markers(self) -> list[MarkerSeen]:
        """The markers in the span."""
        return [marker for marker in self.markers if self.span.holds(marker.time_us)]

    @property
    def end_us(self) -> int:
        """The end of what is shown."""
        last_us = self.trace_end_us
        return last_us if self.span.end_us is None else min(last_us, self.span.end_us)

    @property
    def coordinators(self) -> list[str]:
        """The brokers that acted as coordinator, the last one last."""
        found = [call.broker for call in self.calls if call.api in COORDINATOR_APIS]
        return sorted(set(found), key=found[::-1].index, reverse=True)


def list_ids(lines: Iterable[Body]) -> list[dict[str, Any]]:
    """Returns a row per transactional id of a trace."""
    rows: dict[str, dict[str, Any]] = {}
    waiting: dict[Key, str] = {}
    for line in lines:
        if line.get("kind") == "request":
            for name in _ids_of(line):
                row = rows.setdefault(
                    name,
                    {"transactional_id": name, "requests": 0, "errors": {}, "first_at_us": 0},
                )
                row["requests"] += 1
                row["first_at_us"] = row["first_at_us"] or line["time_us"]
                row["last_at_us"] = line["time_us"]
                waiting[_key(line)] = name
        elif line.get("kind") == "reply" and (name := waiting.pop(_key(line), "")):
            for error in line.get("errors", []):
                rows[name]["errors"][error] = rows[name]["errors"].get(error, 0) + 1
    return [rows[name] for name in sorted(rows)]


def read_story(lines: Iterable[Body], transactional_id: str) -> Story:
    """Finds the exchanges of an id."""
    reader = _Reader(transactional_id)
    for line in lines:
        reader.add(line)
    return reader.story()


class _Reader:
    """One pass over a trace."""

    def __init__(self, transactional_id: str) -> None:
        self._id = transactional_id
        self._names = TopicNames()
        self._waiting: dict[Key, Call] = {}
        self._calls: list[Call] = []
        self._producer_ids: set[int] = set()
        self._last_us = 0
        self._brokers: dict[str, int] = {}
        """The ids of brokers by address: a tap learns them on the way."""

    def add(self, line: Body) -> None:
        """Looks at one line."""
        kind = line.get("kind")
        self._last_us = max(self._last_us, line.get("time_us", 0))
        if "address" in line and "broker" in line:
            self._brokers[line["address"]] = line["broker"]
        if "format" in line:
            # A process began: what its predecessor has not answered never will be.
            broker = line.get("broker")
            who = "the process" if broker is None else f"broker {broker}"
            self._lose(line["time_us"], f"{who} was restarted", lambda key: key[0] == broker)
        elif kind == "connection" and line.get("event") == "closed":
            # A tap that is stopped closes connections on which requests still wait.
            if line.get("reason") != TAP_STOPPED:
                reason, number = str(line.get("reason", "")), line.get("connection")
                self._lose(line["time_us"], reason, lambda key: key[:2] == (None, number))
        elif kind == "request" and self._concerns(line):
            call = Call(line, broker_of(line))
            self._waiting[_key(line)] = call
            self._calls.append(call)
            self._learn(line.get("body") or {})
        elif kind == "reply":
            self._names.learn(line)
            call_or_none = self._waiting.pop(_key(line), None)
            if call_or_none is not None:
                call_or_none.reply = line
                if call_or_none.api in ("InitProducerId", "EndTxn"):
                    self._learn(line.get("body") or {})

    def story(self) -> Story:
        """Puts everything together."""
        calls = sorted(self._calls, key=lambda call: call.time_us)
        for call in calls:
            node_id = self._brokers.get(call.request.get("address", ""))
            if "broker" not in call.request and node_id is not None:
                call.broker = f"broker {node_id}"
            words = in_words(call.request, call.reply, self._names)
            call.words = words.removeprefix(self._id).lstrip(" :")
            call.partitions = partitions_of(call.request, self._names)
        clients = _Instances().assign(calls)
        leaders = {
            partition: call.broker
            for call in calls
            if call.api == "Produce" and not call.errors
            for partition in call.partitions
        }
        markers = list(_seen_markers(calls, self._names))
        markers += [each for each in _inferred_markers(calls, leaders) if _is_new(each, markers)]
        calls = [call for call in calls if call.api != "WriteTxnMarkers"]
        for number, call in enumerate(calls, start=1):
            call.number = number
        return Story(self._id, calls, markers, clients, leaders, self._producer_ids, self._last_us)

    def _lose(self, time_us: int, reason: str, concerns: Callable[[Key], bool]) -> None:
        """Notes that requests will never be answered."""
        for key in [each for each in self._waiting if concerns(each)]:
            call = self._waiting.pop(key)
            call.lost_us, call.lost_reason = time_us, reason

    def _concerns(self, line: Body) -> bool:
        if line.get("api") != "WriteTxnMarkers":
            # Brokers name the id too, when they verify a write. That is not the producer's doing.
            return "connection" in line and self._id in _ids_of(line)
        markers = (line.get("body") or {}).get("markers", [])
        return any(
            isinstance(marker, dict) and marker.get("producer_id") in self._producer_ids
            for marker in markers
        )

    def _learn(self, body: Body) -> None:
        identity = _identity(body)
        if identity is not None:
            self._producer_ids.add(identity[0])


class _Instances:
    """Tells the producers of an id apart."""

    def __init__(self) -> None:
        self._by_identity: dict[Identity, int] = {}
        self._by_connection: dict[object, int] = {}
        self._count = 0

    def assign(self, calls: list[Call]) -> dict[int, str]:
        """Numbers the instance of each call; returns the client id of each instance."""
        self._join(calls)
        mine = [call for call in calls if call.api != "WriteTxnMarkers"]
        # A connection that shows no identity, for FindCoordinator perhaps, belongs to the next one.
        following = 1
        for call in reversed(mine):
            following = self._by_connection.get(_connection(call.request), following)
            call.instance = following
        clients: dict[int, str] = {}
        for call in mine:
            clients.setdefault(call.instance, str(call.request.get("client_id") or ""))
        return clients

    def _join(self, calls: list[Call]) -> None:
        for call in calls:
            sent = call_identity(call)
            if sent is not None:
                self._belongs(_connection(call.request), sent)
            given = _identity(call.answer)
            if call.api in ("InitProducerId", "EndTxn") and given is not None and not call.errors:
                number = self._number(_connection(call.request))
                self._by_identity[given] = number

    def _belongs(self, connection: object, identity: Identity) -> None:
        number = self._by_identity.get(identity)
        if number is None:
            self._by_identity[identity] = self._number(connection)
        else:
            self._by_connection.setdefault(connection, number)

    def _number(self, connection: object) -> int:
        if connection not in self._by_connection:
            self._count += 1
            self._by_connection[connection] = self._count
        return self._by_connection[connection]


def call_identity(call: Call) -> Identity | None:
    """The producer id and epoch that a request names."""
    if call.api == "Produce":
        for topic in call.body.get("topic_data", []):
            for data in topic.get("partition_data", []) if isinstance(topic, dict) else []:
                batches = (
                    data.get("records", {}).get("batches", []) if isinstance(data, dict) else []
                )
                for batch in batches:
                    if (found := _identity(batch)) is not None:
                        return found
        return None
    if call.api == "AddPartitionsToTxn":
        return next(
            (_identity(one) for one in call.body.get("transactions", []) if isinstance(one, dict)),
            None,
        )
    return _identity(call.body)


def broker_of(line: Body) -> str:
    """The broker of a line, by its id if that is known."""
    if "broker" in line:
        return f"broker {line['broker']}"
    return str(line.get("address", "broker"))


def _seen_markers(calls: list[Call], names: TopicNames) -> Iterator[MarkerSeen]:
    for call in calls:
        if call.api != "WriteTxnMarkers":
            continue
        for marker in call.body.get("markers", []):
            for topic in marker.get("topics", []) if isinstance(marker, dict) else []:
                for index in topic.get("partition_indexes", []):
                    commit = bool(marker.get("transaction_result"))
                    place = f"{names.name(topic)}-{index}"
                    yield MarkerSeen(call.time_us, call.broker, place, commit, "trace")


def _inferred_markers(calls: list[Call], leaders: dict[str, str]) -> Iterator[MarkerSeen]:
    """The markers that an ended transaction must have, halfway through its EndTxn."""
    written: dict[int, dict[str, None]] = {}
    for call in calls:
        mine = written.setdefault(call.instance, {})
        if call.api in ("Produce", "AddPartitionsToTxn") and not call.errors:
            mine |= dict.fromkeys(call.partitions)
        if call.api != "EndTxn" or call.errors or call.end_us is None:
            continue
        for partition in mine:
            middle_us = (call.time_us + call.end_us) // 2
            commit = bool(call.body.get("committed"))
            yield MarkerSeen(middle_us, leaders.get(partition), partition, commit, "inferred")
        mine.clear()


def _is_new(inferred: MarkerSeen, seen: list[MarkerSeen]) -> bool:
    return not any(
        each.partition == inferred.partition
        and abs(each.time_us - inferred.time_us) < _SAME_MARKER_US
        for each in seen
    )


def _ids_of(line: Body) -> list[str]:
    """The transactional ids that a request names."""
    body = line.get("body") or {}
    found = [body.get("transactional_id")]
    if line.get("api") == "FindCoordinator" and body.get("key_type") == 1:
        found += body.get("coordinator_keys", [])
    if line.get("api") == "AddPartitionsToTxn":
        transactions = body.get("transactions", [])
        found += [one.get("transactional_id") for one in transactions if isinstance(one, dict)]
    return [name for name in found if isinstance(name, str) and name]


def _connection(line: Body) -> object:
    if "address" in line:
        return line["address"], line.get("connection")
    return line.get("broker"), line.get("connection"), line.get("client")


def _key(line: Body) -> Key:
    if "connection" in line:
        where: object = line["connection"]
        number: object = line.get("correlation_id")
    else:
        where = line.get("api")
        number = line["time_us"] - line.get("duration_us", 0)
    # A tap numbers the connections of all brokers, and learns their ids on the way.
    return None if "address" in line else line.get("broker"), where, number


def _identity(body: Body) -> Identity | None:
    producer_id, epoch = body.get("producer_id"), body.get("producer_epoch")
    if isinstance(producer_id, int) and isinstance(epoch, int) and producer_id >= 0:
        return producer_id, epoch
    return None
