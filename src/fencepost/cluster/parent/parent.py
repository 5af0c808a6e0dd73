"""The parent of a cluster: it starts the brokers, watches them, and is their controller.

Theory of operation
-------------------
`supervision.py` has the rules, without a process; here they meet processes, links and the
controller:

    a process is started       it says HELLO with its port
    at the start of a cluster  when all have said it: each is registered, active, and gets the
                               state
    later                      it is registered, fenced, and gets the state
    it says SERVING            at the start: ready when all have; later: it is unfenced, and after a
                               moment the leaders are balanced
    it is silent too long      it is killed
    it was killed and does     it is suspended: its partitions have no leader until it has been
    not end                    reaped
    it has been reaped         its link is closed; it is fenced: others lead its partitions
    the disk is full           these records are tried again; a new process waits for the fencing of
                               the one before it
    the parent gets SIGTERM    every broker closes its partitions and ends; then the parent does

Every pair of brokers that are registered shares a link, which is made when the second of
them says HELLO.

An operator or a test gives commands over the control socket (`control.py`, `commands.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.errors import ErrorCode
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import NO_NODE
from fencepost.broker.storage.identity import draw_id
from fencepost.cluster import messages
from fencepost.cluster.link import Link, make_pair
from fencepost.cluster.messages import Body, Kind
from fencepost.cluster.parent.supervision import (
    HEARTBEAT_MS,
    Action,
    Deed,
    ProcessState,
    Supervision,
)
from fencepost.coordinator.metadata.events import RegisterBroker
from fencepost.coordinator.metadata.state import Endpoint

if TYPE_CHECKING:
    from fencepost.base.seams import Randomness
    from fencepost.cluster.parent.broker_child import BrokerChild
    from fencepost.cluster.parent.controller_node import ControllerNode

log = logging.getLogger(__name__)

STOP_PATIENCE_MS: Final = 30_000
"""How long a broker may take to close its partitions before it is killed."""

RETRY_MS: Final = 500
"""Pause before a record about a broker that the disk refused is written again."""

REBALANCE_MS: Final = 2_000
"""How long after a broker has come back it gets its share of the leaders: clients have noticed it
by then."""


class BrokerState:
    """One broker, as the parent knows it: its process, its link, its address."""

    def __init__(self, broker_id: int, settings: dict[str, Any]) -> None:
        self.broker_id: Final = broker_id
        self.settings: Final = settings
        self.child: BrokerChild | None = None
        self.link: Link | None = None
        self.hello: dict[str, Any] | None = None
        self.ports: list[int] = []
        """The ports that its listeners had last."""
        self.is_serving = False
        self.has_all_open = False
        """Whether it said so since it has carried out the last batch of the metadata log."""
        self.is_paused = False
        self.is_rolling = False

    # -- remote_followers.BrokerPort --------------------------------------------------------------

    def state(self, end_offset: int, records: list[bytes]) -> None:
        """Sends the metadata as it is."""
        body = messages.encode_batch(end_offset, records, opens_at_once=True)
        self.send(Kind.STATE, body)

    def records(self, end_offset: int, records: list[bytes], *, opens_at_once: bool) -> None:
        """Sends a batch of the metadata log."""
        body = messages.encode_batch(end_offset, records, opens_at_once=opens_at_once)
        self.send(Kind.RECORDS, body)

    def open(self, end_offset: int) -> None:
        """Sends the permission to open what batches below this offset give."""
        self.send(Kind.OPEN, messages.encode_offset(end_offset))

    def send(self, kind: Kind, body: Body = (), files: Sequence[int] = ()) -> None:
        """Sends a message, unless the broker is gone."""
        if self.link is not None:
            self.link.send(kind, body, files)


class Parent:
    """The parent process of one cluster."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: ControllerNode,
        brokers: Sequence[BrokerState],
        *,
        randomness: Randomness,
        spawn: Callable[[int], BrokerChild],
        session_timeout_ms: int,
        announce: Callable[[str], None],
        make_link: Callable[..., Link] = Link,
    ) -> None:
        self._loop = loop
        self._make_link = make_link
        self._node = node
        self._randomness = randomness
        self._spawn = spawn
        self._announce = announce
        self.brokers: Final = {each.broker_id: each for each in brokers}
        self.supervision: Final = Supervision(
            list(self.brokers),
            session_timeout_ms=session_timeout_ms,
            now_ms=self._now_ms(),
            processor_ms=self._processor_ms,
        )
        self._is_begun = False
        """Whether all brokers have said HELLO once, and got the state."""
        self._is_announced = False
        self._is_trusted = False
        """Whether it is recorded that every partition has been recovered."""
        self._is_stopping = False
        self._failure: str | None = None
        self.stopping: Final = asyncio.Event()
        """Set once the cluster has been told to stop."""
        self._ended: Final = asyncio.Event()
        self._joined: set[frozenset[int]] = set()
        """The pairs of processes that have a link."""
        self._numbers: Final = itertools.count(1)
        self._controlled: Final[dict[int, tuple[int, asyncio.Future[Any]]]] = {}
        self._changed: Final[list[asyncio.Future[None]]] = []
        """Those who wait until a broker changes its state."""

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _processor_ms(self, broker_id: int) -> int | None:
        child = self.brokers[broker_id].child
        return None if child is None else child.processor_ms()

    # -- life of the parent -----------------------------------------------------------------------

    async def run(self, started: Sequence[BrokerChild]) -> None:
        """Runs the cluster until it is told to stop; ConfigError if a broker cannot start.

        `started` are processes of brokers that run already.
        """
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._act(self.supervision.start_all(), {each.broker_id: each for each in started})
        self._look()
        await self._ended.wait()
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._failure is not None:
            raise ConfigError(self._failure)

    def stop(self) -> None:
        """Asks all brokers to stop; `run` returns when the last one is gone."""
        if self._is_stopping:
            return
        log.info("stopping %d brokers", len(self.brokers))
        self._is_stopping = True
        self.stopping.set()
        self._act(self.supervision.stop_all(self._now_ms(), patience_ms=STOP_PATIENCE_MS))
        for broker in self.brokers.values():
            if broker.is_paused and broker.child is not None:
                broker.child.resume()
        self._end_if_all_are_gone()

    @property
    def is_begun(self) -> bool:
        """Whether the brokers have got the state, and may have opened partitions."""
        return self._is_begun

    def kill_all(self) -> None:
        """Kills what still runs, and waits for it: at the end, however it came about."""
        for broker in self.brokers.values():
            if broker.child is not None:
                broker.child.kill()
                broker.child.wait(1.0)

    def _look(self) -> None:
        """Checks every deadline, again and again."""
        self._reap()
        self._act(self.supervision.on_time(self._now_ms()))
        if not self._ended.is_set():
            self._loop.call_later(HEARTBEAT_MS / 1000, self._look)

    def _end_if_all_are_gone(self) -> None:
        """Ends with the last process; one that cannot die keeps the lock of the directory."""
        if self._is_stopping and all(
            each.child is None or self.is_suspended(each.broker_id)
            for each in self.brokers.values()
        ):
            self._ended.set()

    # -- what the rules say -----------------------------------------------------------------------

    def _act(
        self, actions: Sequence[Action], started: dict[int, BrokerChild] | None = None
    ) -> None:
        for deed, broker_id in actions:
            broker = self.brokers[broker_id]
            match deed:
                case Deed.START:
                    self._start(broker, (started or {}).get(broker_id))
                case Deed.KILL:
                    if broker.child is not None:
                        broker.child.kill()
                case Deed.STOP:
                    broker.send(Kind.STOP)
                case Deed.SUSPEND:
                    log.error(
                        "broker %d (process %d) was killed, but the kernel does not let it end. "
                        "Its partitions have no leader until it does",
                        broker.broker_id,
                        broker.child.pid if broker.child else -1,
                    )
                    self._suspend(broker)
                case Deed.FAIL_OVER:
                    self._fail_over(broker)

    def _start(self, broker: BrokerState, child: BrokerChild | None) -> None:
        try:
            broker.child = child or self._spawn(broker.broker_id)
        except OSError as problem:
            log.error("broker %d cannot be started: %s", broker.broker_id, problem)
            self._act(self.supervision.on_reaped(broker.broker_id, self._now_ms()))
            return
        broker.hello = None
        broker.is_serving = broker.is_paused = broker.has_all_open = False
        broker.link = self._make_link(
            self._loop,
            broker.child.end,
            on_message=partial(self._on_message, broker),
            on_end=partial(self._on_link_end, broker),
        )
        self.supervision.on_started(broker.broker_id, self._now_ms())
        # A broker that chose its ports itself gets them again, if they are still free.
        last = itertools.chain(broker.ports, itertools.repeat(0))
        ports = [
            [before, 0] if port == 0 and before else [port]
            for port, before in zip(broker.settings["ports"], last, strict=False)
        ]
        start = {**broker.settings, "ports": ports, "cluster_id": self._node.cluster_id}
        broker.send(Kind.START, messages.encode_json(start))

    def _on_link_end(self, broker: BrokerState) -> None:
        """The process is about to end, or has; it is reaped before anything else happens."""
        broker.link = None
        self._reap()

    def _reap(self) -> None:
        for broker in self.brokers.values():
            if broker.child is not None and (code := broker.child.reap()) is not None:
                self._reaped(broker, code)

    def _reaped(self, broker: BrokerState, code: int) -> None:
        child, broker.child = broker.child, None
        assert child is not None, "a process is reaped once"
        if broker.link is not None:
            broker.link.close()
            broker.link = None
        broker.is_serving = broker.is_paused = False
        self._joined = {pair for pair in self._joined if child.pid not in pair}
        if not self._is_stopping and not broker.is_rolling:
            log.warning(
                "broker %d (process %d) ended: %s", broker.broker_id, child.pid, _cause(code)
            )
        for number, (broker_id, waiting) in list(self._controlled.items()):
            if broker_id == broker.broker_id:
                del self._controlled[number]
                if not waiting.done():  # Otherwise the command was given up.
                    waiting.set_exception(FencepostError(f"Broker {broker_id} has ended."))
        self._act(self.supervision.on_reaped(broker.broker_id, self._now_ms()))
        self._tell_changed()
        self._end_if_all_are_gone()

    def _suspend(self, broker: BrokerState) -> None:
        """The process does not end: nothing waits for it, and no broker leads its partitions."""
        self._tell_changed()
        self._end_if_all_are_gone()
        if self._is_begun and not self._is_stopping:
            self._node.brokers.suspend(broker.broker_id)
            self._take_leadership(broker)

    def _take_leadership(self, broker: BrokerState) -> None:
        """Writes that a suspended broker leads nothing; the record may have to wait for space."""
        if self._is_stopping or not self.is_suspended(broker.broker_id):
            return
        known = self._node.metadata.brokers.get(broker.broker_id)
        if known is not None:
            logged = self._logged("the suspension of a broker")
            if self._node.controller.suspend_broker(broker.broker_id, logged):
                self._loop.call_later(RETRY_MS / 1000, self._take_leadership, broker)

    def _fail_over(self, broker: BrokerState) -> None:
        """The process is gone: others lead its partitions."""
        if not self._is_begun or self._is_stopping:
            return
        self._node.brokers.disconnect(broker.broker_id)
        if broker.broker_id in self._node.metadata.brokers:
            self._node.controller.fence_brokers([broker.broker_id], self._logged("a failover"))
        if not self._is_fenced(broker):
            self._loop.call_later(RETRY_MS / 1000, self._fail_over_again, broker)

    def _fail_over_again(self, broker: BrokerState) -> None:
        """The disk refused the record; no process of this broker is admitted before it is there."""
        if not self._is_fenced(broker):
            self._fail_over(broker)

    def _logged(self, what: str) -> Callable[[ErrorCode], None]:
        def done(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                log.error("%s could not be written: %s", what, error.name)

        return done

    # -- messages of a broker ---------------------------------------------------------------------

    def _on_message(
        self, broker: BrokerState, kind: int, body: memoryview, files: list[int]
    ) -> None:
        assert not files, "brokers send no files"
        broker_id = broker.broker_id
        match kind:
            case Kind.HEARTBEAT:
                self.supervision.on_heartbeat(broker_id, self._now_ms())
                broker.has_all_open = not messages.decode_heartbeat(body)
                self._trust_if_all_are_open()
            case Kind.RELEASED:
                self._node.brokers.released(broker_id, messages.decode_offset(body))
            case Kind.DONE:
                broker.has_all_open = False  # Its next heartbeat will tell.
                self._node.brokers.done(broker_id, messages.decode_offset(body))
            case Kind.REQUEST:
                self._serve(broker, messages.decode_request(body))
            case Kind.ASK:
                self._asked(broker, messages.decode_json(body))
            case Kind.HELLO:
                self._on_hello(broker, messages.decode_json(body))
            case Kind.SERVING:
                self._on_serving(broker)
            case Kind.CONTROLLED:
                self._on_controlled(messages.decode_json(body))
            case _:
                raise AssertionError(f"broker {broker_id} sent a message of kind {kind}")

    def _serve(self, broker: BrokerState, request: messages.Request) -> None:
        answer = partial(self._reply, broker, broker.link, request.number)
        try:
            self._node.serve(request, answer)
        except AssertionError:
            raise
        except Exception:
            # The client's connection is closed, as by a single broker; the cluster goes on.
            log.exception("a request that broker %d forwarded failed", broker.broker_id)
            answer([])

    def _reply(
        self,
        broker: BrokerState,
        link: Link | None,
        number: int,
        frame: Body,
    ) -> None:
        if link is broker.link:  # Otherwise the process that forwarded it is gone.
            broker.send(Kind.REPLY, messages.encode_reply(number, frame))

    def _asked(self, broker: BrokerState, question: dict[str, Any]) -> None:
        number, link = question["number"], broker.link

        def answer(value: object) -> None:
            if link is broker.link:
                broker.send(Kind.ANSWER, messages.encode_json({"number": number, "answer": value}))

        if "create" in question:
            self._node.controller.auto_create(
                question["create"],
                lambda outcomes: answer(
                    [(each.name, int(each.error), each.message) for each in outcomes]
                ),
            )
        else:
            self._node.controller.reserve_block(
                lambda block: answer(None if block is None else [block.start, block.stop]),
                node_id=broker.broker_id,
            )

    # -- brokers that start -----------------------------------------------------------------------

    def _on_hello(self, broker: BrokerState, hello: dict[str, Any]) -> None:
        if "error" in hello:
            self._cannot_start(broker, hello["error"])
            return
        broker.ports = hello["ports"]
        if self._is_begun:
            self._admit(broker, broker.child, hello)
            return
        broker.hello = hello
        if all(each.hello is not None for each in self.brokers.values()):
            self._begin()

    def _admit(self, broker: BrokerState, child: BrokerChild | None, hello: dict[str, Any]) -> None:
        """Registers a process that starts later, and gives it the state.

        The records may have to wait for space on the disk. The one that fences the process before
        this one comes first: with it the other brokers stop reading what that process has sent.
        """
        if broker.child is not child or self._is_stopping:
            return
        broker.hello = hello
        if self._is_fenced(broker) and self._register(broker, fenced=True):
            self._connect(broker)
            return
        broker.hello = None
        self._loop.call_later(RETRY_MS / 1000, self._admit, broker, child, hello)

    def _is_fenced(self, broker: BrokerState) -> bool:
        known = self._node.metadata.brokers.get(broker.broker_id)
        return known is None or known.fenced

    def _cannot_start(self, broker: BrokerState, reason: str) -> None:
        if self._is_announced:
            log.error("broker %d cannot start: %s", broker.broker_id, reason)
        elif self._failure is None:
            self._failure = f"broker {broker.broker_id}: {reason}"
            self.stop()

    def _begin(self) -> None:
        """All brokers are there: they are registered, and get the state."""
        self._is_begun = True
        for broker in self.brokers.values():
            if not self._register(broker, fenced=False):
                self._cannot_start(broker, "it could not be registered: is the disk full?")
                return
        for broker in self.brokers.values():
            self._connect(broker)

    def _register(self, broker: BrokerState, *, fenced: bool) -> bool:
        """Registers a process; returns whether the record was written."""
        assert broker.hello is not None, "a broker says HELLO before it is registered"
        event = RegisterBroker(
            node_id=broker.broker_id,
            epoch=0,
            incarnation_id=draw_id(self._randomness),
            endpoints=tuple(Endpoint(*each) for each in broker.hello["endpoints"]),
            rack=self._node.config.broker_rack,
            fenced=fenced,
        )
        self._node.controller.register_broker(event, self._logged("a registration"))
        known = self._node.metadata.brokers.get(broker.broker_id)
        return known is not None and known.incarnation_id == event.incarnation_id

    def _connect(self, broker: BrokerState) -> None:
        """Gives a broker its links to the others, and the state."""
        for other in self.brokers.values():
            if other is not broker and other.hello is not None and other.link is not None:
                self._join(broker, other)
        self._node.brokers.connect(broker.broker_id, broker)

    def _join(self, one: BrokerState, other: BrokerState) -> None:
        """Gives a pair of processes a link, once."""
        assert one.child is not None, "a broker with a link has a process"
        assert other.child is not None, "a broker with a link has a process"
        pair = frozenset((one.child.pid, other.child.pid))
        if pair not in self._joined:
            self._joined.add(pair)
            ends = make_pair()
            one.send(Kind.PEER, _peer(other, other.child.pid), [ends[0].detach()])
            other.send(Kind.PEER, _peer(one, one.child.pid), [ends[1].detach()])

    def _on_serving(self, broker: BrokerState) -> None:
        self.supervision.on_serving(broker.broker_id, self._now_ms())
        broker.is_serving = True
        broker.is_rolling = broker.has_all_open = False
        known = self._node.metadata.brokers[broker.broker_id]
        if known.fenced:
            self._unfence(broker, broker.child)
        if not self._is_announced and all(each.is_serving for each in self.brokers.values()):
            self._is_announced = True
            found = [each.hello for each in self.brokers.values() if each.hello is not None]
            self._announce(",".join(hello["address"] for hello in found))
        self._tell_changed()

    def _trust_if_all_are_open(self) -> None:
        """Records that recovery is complete, once every partition is open at its leader.

        A partition that was never opened since a power loss has not been recovered. If the
        record were written before, another broker would later open it as after a kill.
        """
        if self._is_trusted or not self._is_announced:
            return
        has_leaderless = NO_NODE in self._node.metadata.leader_counts
        if has_leaderless or self._node.brokers.unfinished():
            return
        if all(each.is_serving and each.has_all_open for each in self.brokers.values()):
            self._node.opened()
            self._is_trusted = True

    def _unfence(self, broker: BrokerState, child: BrokerChild | None) -> None:
        """Lets a process lead; its record may have to wait for space on the disk."""
        if broker.child is not child or self._is_stopping:
            return
        self._node.controller.unfence_brokers([broker.broker_id], self._logged("an unfencing"))
        if self._is_fenced(broker):
            self._loop.call_later(RETRY_MS / 1000, self._unfence, broker, child)
            return
        self._tell_changed()
        self._loop.call_later(REBALANCE_MS / 1000, self._rebalance_soon)

    def _rebalance_soon(self) -> None:
        if not self._is_stopping:
            self._node.controller.rebalance(None, self._logged("a rebalance"))

    # -- commands ---------------------------------------------------------------------------------

    def ask_broker(self, broker_id: int, command: dict[str, Any]) -> asyncio.Future[Any]:
        """Sends a command to a broker; the future has its result."""
        broker = self.broker(broker_id)
        future: asyncio.Future[Any] = self._loop.create_future()
        if broker.link is None:
            future.set_exception(FencepostError(f"Broker {broker_id} does not run."))
            return future
        number = next(self._numbers)
        self._controlled[number] = broker_id, future
        broker.send(Kind.CONTROL, messages.encode_json({**command, "number": number}))
        return future

    def _on_controlled(self, result: dict[str, Any]) -> None:
        _, future = self._controlled.pop(result["number"], (0, None))
        if future is None or future.done():
            return
        if "error" in result:
            future.set_exception(FencepostError(result["error"]))
        else:
            future.set_result(result["result"])

    def broker(self, broker_id: int) -> BrokerState:
        """One broker; FencepostError if there is none of this id."""
        found = self.brokers.get(broker_id)
        if found is None:
            known = ", ".join(map(str, self.brokers))
            raise FencepostError(f"There is no broker {broker_id}; the brokers are {known}.")
        return found

    def kill(self, broker_id: int) -> None:
        """Kills a broker (-9); it stays dead until `restart`."""
        self.broker(broker_id)
        self._act(self.supervision.kill(broker_id, self._now_ms(), hold=True))

    def restart(self, broker_id: int) -> None:
        """Starts a broker that is dead, now; one that runs is left as it is."""
        self.broker(broker_id)
        self._act(self.supervision.restart(broker_id))

    def pause(self, broker_id: int) -> None:
        """Stops a broker's process; after the session timeout it is killed."""
        broker = self.broker(broker_id)
        if broker.child is None:
            raise FencepostError(f"Broker {broker_id} does not run.")
        broker.is_paused = True
        broker.child.pause()

    def resume(self, broker_id: int) -> None:
        """Lets a paused broker go on."""
        broker = self.broker(broker_id)
        if broker.child is None:
            raise FencepostError(f"Broker {broker_id} does not run.")
        broker.is_paused = False
        broker.child.resume()

    def stop_broker(self, broker_id: int) -> None:
        """Asks a broker to stop cleanly; it is killed if it takes too long."""
        self._act(self.supervision.stop(broker_id, self._now_ms(), patience_ms=STOP_PATIENCE_MS))

    def is_leading(self, broker_id: int) -> bool:
        """Whether a broker serves clients and may lead."""
        may_lead = broker_id in self._node.metadata.active_nodes()
        return self.broker(broker_id).is_serving and may_lead

    def is_suspended(self, broker_id: int) -> bool:
        """Whether a broker was killed, and the kernel does not let its process end."""
        return self.supervision.processes[broker_id].is_suspended

    def is_held(self, broker_id: int) -> bool:
        """Whether a broker was killed by command, and stays dead until it is restarted."""
        return self.supervision.processes[broker_id].is_held

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Returns when a condition on the brokers' states holds."""
        while not condition():
            changed: asyncio.Future[None] = self._loop.create_future()
            self._changed.append(changed)
            await changed

    def _tell_changed(self) -> None:
        waiting, self._changed[:] = list(self._changed), []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def describe(self, broker: BrokerState) -> dict[str, Any]:
        """One broker for `fencepost cluster status`."""
        process = self.supervision.processes[broker.broker_id]
        state = "suspended" if process.is_suspended else process.state.value
        if broker.is_paused and process.state in (ProcessState.SERVING, ProcessState.STARTING):
            state = "paused"
        return {
            "id": broker.broker_id,
            "pid": None if broker.child is None else broker.child.pid,
            "address": None if broker.hello is None else broker.hello["address"],
            "state": state,
            "restarts": max(0, process.restarts - 1),
        }

    def why_not_ready(self) -> str | None:
        """Which brokers do not serve; None if all do."""
        if self._is_stopping:
            return "the cluster is stopping"
        absent = [str(each.broker_id) for each in self.brokers.values() if not each.is_serving]
        return f"these brokers do not serve: {', '.join(absent)}" if absent else None


def _peer(broker: BrokerState, pid: int) -> Body:
    return messages.encode_json({"broker": broker.broker_id, "pid": pid})


def _cause(code: int) -> str:
    """Why a process has ended, from its exit code."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
