"""The control socket of a cluster: what is not on Kafka's wire, for operators and tests.

The parent listens on a Unix socket in the data directory, which only its user may open. A
connection carries one command as a line of JSON, and gets one line back:

    {"do": "status"}                              {"result": {"brokers": [...], ...}}
    {"do": "kill", "broker": 2}                   {"result": null}
    {"do": "kill", "broker": 7}                   {"error": "There is no broker 7; ..."}

    status                  processes, addresses, states; who leads and coordinates how much
    kill                    kill -9; returns when others lead. The broker stays dead
    restart                 starts a dead broker; returns when it serves and may lead. One that
                            serves is left as it is
    pause, resume           SIGSTOP and SIGCONT; `pause` returns when the process stands still
    down, up                the broker cuts off its clients, and lets them in again
    fault, unfault, release, faults   faults of one broker (`broker/controls.py`)
    die                     the broker kills itself at a crash point of a commit or an abort
    roll                    stops a broker cleanly and starts it again; returns when it serves
    rebalance               every broker gets its share of the leaders; returns when it leads them

`kill` and `restart` wait until every live broker knows the new leaders; a paused broker is waited
for until it goes on or is killed. `commands.py` has what happens when several commands meet. When
the cluster is told to stop, a command that is not complete is given up, and only `status` is
answered. A command goes on if its client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fencepost.cluster.parent.commands import Commands

if TYPE_CHECKING:
    from fencepost.cluster.parent.controller_node import ControllerNode
    from fencepost.cluster.parent.parent import BrokerState, Parent

log = logging.getLogger(__name__)

SOCKET: Final = ".fencepost-control"
MAX_COMMAND_BYTES: Final = 64 * 1024
MAX_CONNECTIONS: Final = 256
"""Commands at once; more than any program sends, and far fewer than the parent has descriptors."""
SILENCE_SECONDS: Final = 10
"""How long a connection may stay open without a command."""
_MAX_PATH_BYTES: Final = 100
"""A little less than the 104 or 108 bytes that the kernels take for the path of a Unix socket."""


_BROKER_COMMANDS: Final = frozenset(
    {"kill", "restart", "pause", "resume", "down", "up", "fault", "unfault", "release"}
    | {"faults", "die", "roll"}
)


class ControlServer:
    """Serves the control socket of one cluster."""

    def __init__(self, parent: Parent, node: ControllerNode) -> None:
        self._parent = parent
        self._node = node
        self._commands: Final = Commands(parent, node)
        self._connections = 0
        self._server: asyncio.AbstractServer | None = None
        self._down: set[int] = set()
        """The processes that were cut off from their clients."""

    async def start(self, folder: str) -> None:
        """Listens in a data directory; a socket that a dead parent left there is replaced."""
        try:
            with socket_path(folder) as path:
                listening = _bind(path)
        except OSError as problem:
            raise ConfigError(
                f"The control socket {os.path.join(folder, SOCKET)} cannot be created: "
                f"{problem.strerror}. Brokers of a cluster need a directory that can have one."
            ) from problem
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listening, limit=MAX_COMMAND_BYTES, backlog=MAX_CONNECTIONS
        )

    async def stop(self, folder: str) -> None:
        """Stops listening, and removes the socket."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError), socket_path(folder) as path:
                os.unlink(path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            answer = await self._answer(reader)
            writer.write(json.dumps(answer).encode() + b"\n")
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        try:
            return {"result": await self._run(await self._read(reader))}
        except FencepostError as problem:
            return {"error": str(problem)}

    async def _read(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        if self._connections > MAX_CONNECTIONS:
            raise FencepostError(f"More than {MAX_CONNECTIONS} commands wait; try again later.")
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                line = await reader.readline()
            command = json.loads(line)
        except TimeoutError as problem:
            raise FencepostError(f"No command came within {SILENCE_SECONDS} s.") from problem
        except ConnectionError as problem:
            raise FencepostError("The connection ended before its command.") from problem
        except (ValueError, RecursionError) as problem:
            raise FencepostError(f"The command is not a line of JSON: {problem}.") from problem
        if not isinstance(command, dict):
            raise FencepostError("A command is a JSON object.")
        return command

    async def _run(self, command: dict[str, Any]) -> Any:
        if command == {"do": "status"}:
            return self._status()
        running = asyncio.ensure_future(self._change(command))
        stopping = asyncio.ensure_future(self._parent.stopping.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise FencepostError(
                    f"The cluster is stopping: {command['do']} may not be complete."
                )
            return running.result()
        finally:
            running.cancel()
            stopping.cancel()

    async def _change(self, command: dict[str, Any]) -> Any:
        if self._parent.stopping.is_set():
            raise FencepostError("The cluster is stopping.")
        match command:
            case {"do": "rebalance"}:
                await self._commands.rebalance()
            case {"do": str(do)} if do in _BROKER_COMMANDS:
                broker_id = command.get("broker")
                if not isinstance(broker_id, int) or isinstance(broker_id, bool):
                    raise FencepostError(f"The id of a broker is a number, not {broker_id!r}.")
                return await self._command_broker(do, broker_id, command)
            case _:
                raise FencepostError(f"There is no command {json.dumps(command)}.")
        return None

    async def _command_broker(self, do: str, broker_id: int, command: dict[str, Any]) -> Any:
        self._parent.broker(broker_id)
        match do:
            case "kill":
                await self._commands.kill(broker_id)
            case "restart":
                await self._commands.restart(broker_id)
            case "pause":
                await self._commands.pause(broker_id)
            case "resume":
                self._parent.resume(broker_id)
            case "roll":
                await self._commands.roll(broker_id)
            case _:
                rest = {key: value for key, value in command.items() if key != "broker"}
                result = await self._parent.ask_broker(broker_id, rest)
                child = self._parent.broker(broker_id).child
                if do == "down" and child is not None:
                    self._down.add(child.pid)
                elif do == "up" and child is not None:
                    self._down.discard(child.pid)
                return result
        return None

    def _describe(self, broker: BrokerState) -> dict[str, Any]:
        found = self._parent.describe(broker)
        if found["state"] == "serving" and found["pid"] in self._down:
            found["state"] = "down"
        return found

    def _status(self) -> dict[str, Any]:
        state = self._node.metadata
        coordinates: dict[int, int] = {}
        leaderless = 0
        for topic in state.topics.values():
            for partition in topic.partitions:
                leaderless += partition.leader < 0
                if topic.name in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
                    leader = partition.leader
                    coordinates[leader] = coordinates.get(leader, 0) + 1
        brokers = [
            {
                **self._describe(broker),
                "leads": state.leader_counts.get(broker.broker_id, 0),
                "coordinates": coordinates.get(broker.broker_id, 0),
            }
            for broker in self._parent.brokers.values()
        ]
        return {
            "cluster": self._node.cluster_id,
            "data": os.path.abspath(self._node.config.data),
            "controller": {"pid": os.getpid()},
            "brokers": brokers,
            "leaderless": leaderless,
            "unfinished": self._node.brokers.unfinished(),
        }


def _bind(path: str) -> socket.socket:
    """A socket that only this user may open."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listening.bind(path)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    listening.setblocking(False)
    return listening


@contextlib.contextmanager
def socket_path(folder: str) -> Iterator[str]:
    """A path of the control socket that is short enough for the kernel."""
    path = os.path.join(os.path.abspath(folder), SOCKET)
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def send_command(folder: str, command: dict[str, Any], *, timeout_seconds: float = 60.0) -> Any:
    """Sends one command to the parent of a cluster; returns its result.

    FencepostError if no cluster runs on the directory, or if the command is refused.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_seconds)
        try:
            with socket_path(folder) as path:
                connection.connect(path)
            connection.sendall(json.dumps(command).encode() + b"\n")
            line = connection.makefile("rb").readline()
        except (FileNotFoundError, ConnectionRefusedError) as problem:
            raise FencepostError(
                f"No cluster runs on {folder}. Start one with `fencepost serve --brokers 3 --data "
                f"{folder}`, or name its directory with --data."
            ) from problem
        except TimeoutError as problem:
            raise FencepostError(
                f"The cluster on {folder} did not carry out {command['do']} within "
                f"{timeout_seconds:g} s."
            ) from problem
        except OSError as problem:
            raise FencepostError(
                f"The control socket in {folder} cannot be used: {problem}."
            ) from problem
    if not line:
        raise FencepostError(f"The cluster on {folder} ended before it answered.")
    answer = json.loads(line)
    if "error" in answer:
        raise FencepostError(answer["error"])
    return answer["result"]
