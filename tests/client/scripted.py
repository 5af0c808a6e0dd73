"""A cluster of scripted responses, and a clock that advances only in pauses.

Requests and responses are really encoded by one side and decoded by the other, in the version that
the client chose. `sent` keeps the requests as a broker would read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fencepost.base.ids import TopicPartition
from fencepost.client.calls import Core
from fencepost.client.options import Endpoint, read_options
from fencepost.client.steps import Answer, Lost, Reply, Send, Steps, run
from fencepost.client.versions import Offer, Range
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from fencepost.wire.forms.api_versions import ApiVersionsResponse, FinalizedFeatureKey
from fencepost.wire.forms.find_coordinator import Coordinator, FindCoordinatorResponse
from fencepost.wire.forms.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

T = TypeVar("T")

ONE = Endpoint("one", 9092)
TWO = Endpoint("two", 9092)
FULL_OFFER = Offer({int(k): Range(a.min_version, a.max_version) for k, a in API.items()}, {})

Prepared = object
"""A form, a `Lost`, an exception, or a function from the request to one of these."""


class ManualClock:
    """A clock that advances only in pauses."""

    def __init__(self) -> None:
        self.now = 1_000

    def now_ms(self) -> int:
        return self.now


class SteadyRandomness:
    """Randomness without jitter."""

    def bytes(self, count: int) -> bytes:
        return bytes([128]) * count


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as a broker reads it."""

    endpoint: Endpoint
    api: ApiKey
    version: int
    form: Any


class Script:
    """A driver that answers from a list, at once."""

    def __init__(self, *, transaction_version: int = 2, **options: Any) -> None:
        self.clock = ManualClock()
        named = {name.replace("_", "."): value for name, value in options.items()}
        self.core = Core(read_options("one:9092,two:9092", named), self.clock, SteadyRandomness())
        self.sent: list[ReceivedRequest] = []
        self.pauses: list[int] = []
        self.leaders: dict[str, list[int]] = {}
        self.coordinator = 1
        self.brokers = {1: ONE, 2: TWO}
        """The brokers that Metadata names."""
        self.down: set[Endpoint] = set()
        """Brokers that refuse connections."""
        self.transaction_version = transaction_version
        self._prepared: dict[ApiKey, deque[Prepared]] = {}
        self._answers: dict[int, Answer] = {}
        self._offer = FULL_OFFER

    def on(self, api: ApiKey, *answers: Prepared) -> None:
        """Sets the answers for the next requests of this API; the last one repeats."""
        self._prepared.setdefault(api, deque()).extend(answers)

    def run(self, procedure: Steps[T]) -> T:
        return run(procedure, self)

    def of(self, api: ApiKey) -> list[ReceivedRequest]:
        return [seen for seen in self.sent if seen.api is api]

    @property
    def apis(self) -> list[ApiKey]:
        return [seen.api for seen in self.sent]

    # The driver's three calls.

    def start(self, send: Send) -> int:
        version = self._offer.pick(send.api, send.at_most)
        seen = ReceivedRequest(send.endpoint, send.api, version, _as_read(send, version))
        self.sent.append(seen)
        ticket = len(self.sent)
        answer = self._answer(seen)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Lost):
            self._answers[ticket] = answer
        else:
            chunks = encode_response(API[send.api], version, 7, answer)
            frame = memoryview(b"".join(chunks))[4:]
            self._answers[ticket] = Reply(
                decode_response(API[send.api], version, frame)[1], version
            )
        return ticket

    def wait(self, tickets: Collection[int], timeout_ms: int) -> Mapping[int, Answer]:
        found = {t: self._answers.pop(t) for t in tickets if t in self._answers}
        if not found:
            self.clock.now += timeout_ms
        return found

    def pause(self, pause_ms: int) -> None:
        self.pauses.append(pause_ms)
        self.clock.now += pause_ms

    # Answers.

    def _answer(self, seen: ReceivedRequest) -> Any:
        if seen.endpoint in self.down:
            return Lost("connection refused", sent=False)
        prepared = self._prepared.get(seen.api)
        if prepared:
            answer = prepared.popleft() if len(prepared) > 1 else prepared[0]
            return answer(seen.form) if callable(answer) else answer
        usual: dict[ApiKey, Callable[[Any], Any]] = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.API_VERSIONS: self._api_versions,
        }
        return usual[seen.api](seen.form)

    def metadata(self, request: Any) -> MetadataResponse:
        """The usual answer to Metadata."""
        names = self.leaders if request.topics is None else [t.name for t in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node_id, host=each.host, port=each.port)
                for node_id, each in self.brokers.items()
            ],
            cluster_id="scripted",
            controller_id=1,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.leaders:
            return MetadataResponseTopic(error_code=3, name=name)
        return MetadataResponseTopic(
            name=name,
            partitions=[
                MetadataResponsePartition(
                    error_code=5 if leader < 0 else 0, partition_index=index, leader_id=leader
                )
                for index, leader in enumerate(self.leaders[name])
            ],
        )

    def _find_coordinator(self, request: Any) -> FindCoordinatorResponse:
        endpoint = self.brokers[self.coordinator]
        found = Coordinator(
            key=request.coordinator_keys[0],
            node_id=self.coordinator,
            host=endpoint.host,
            port=endpoint.port,
        )
        return FindCoordinatorResponse(coordinators=[found])

    def _api_versions(self, request: Any) -> ApiVersionsResponse:
        level = FinalizedFeatureKey(
            name="transaction.version", max_version_level=self.transaction_version
        )
        return ApiVersionsResponse(finalized_features_epoch=1, finalized_features=[level])


def _as_read(send: Send, version: int) -> Any:
    chunks = encode_request(API[send.api], version, 7, "test", send.request)
    frame = memoryview(bytearray(b"".join(chunks)))[4:]
    header = read_request_header(frame)
    return decode_request(API[send.api], version, frame, header.body_offset)


def partition(index: int = 0, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, index)
