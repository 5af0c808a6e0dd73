"""Commands to the brokers of a cluster that take effect after a while: each returns when it has.

Commands of several clients run side by side, and brokers may fail in between. So a command that
waits also ends when its effect can no longer come: the broker was killed by another command, or
was killed and cannot die. Rolls wait for each other: two brokers are never stopped for a roll at
the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import FencepostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.base.errors import ErrorCode
    from fencepost.cluster.parent.controller_node import ControllerNode
    from fencepost.cluster.parent.parent import Parent


class Commands:
    """The commands of one cluster."""

    def __init__(self, parent: Parent, node: ControllerNode) -> None:
        self._parent = parent
        self._node = node
        self._rolling: Final = asyncio.Lock()

    async def kill(self, broker_id: int) -> None:
        """Kills a broker (-9); returns when every live broker knows who leads its partitions."""
        self._parent.kill(broker_id)
        await self._ended(broker_id)
        await self._carried_out()

    async def restart(self, broker_id: int) -> None:
        """Starts a broker that is dead; returns when it serves and may lead."""
        self._parent.restart(broker_id)
        await self._leading(broker_id)
        await self._carried_out()

    async def pause(self, broker_id: int) -> None:
        """Stops a broker's process; returns when it stands still."""
        self._parent.pause(broker_id)
        child = self._parent.broker(broker_id).child
        if child is not None:
            await _stood_still(child.pid)

    async def roll(self, broker_id: int) -> None:
        """Stops a broker cleanly after others have taken its partitions, and starts it again."""
        broker = self._parent.broker(broker_id)
        async with self._rolling:
            if not broker.is_serving:
                raise FencepostError(f"Broker {broker_id} does not serve: it cannot be rolled.")
            broker.is_rolling = True
            try:
                await self._decided(
                    lambda done: self._node.controller.controlled_shutdown(broker_id, done)
                )
                self._parent.stop_broker(broker_id)
                await self._ended(broker_id)
                self._refuse_held(broker_id)
                self._parent.restart(broker_id)
                await self._leading(broker_id)
            finally:
                broker.is_rolling = False
            await self.rebalance()

    async def rebalance(self) -> None:
        """Gives every broker its share of the leaders; returns when they lead."""
        await self._decided(lambda done: self._node.controller.rebalance(None, done))

    # -- waiting ----------------------------------------------------------------------------------

    async def _ended(self, broker_id: int) -> None:
        """Returns when the process that a broker has now is gone."""
        broker = self._parent.broker(broker_id)
        child = broker.child
        if child is None:
            return
        await self._parent.wait_for(
            lambda: broker.child is not child or self._parent.is_suspended(broker_id)
        )
        self._refuse_suspended(broker_id)

    async def _leading(self, broker_id: int) -> None:
        """Returns when a broker that was started may lead."""
        parent = self._parent
        await parent.wait_for(
            lambda: (
                parent.is_leading(broker_id)
                or parent.is_held(broker_id)
                or parent.is_suspended(broker_id)
            )
        )
        self._refuse_held(broker_id)
        self._refuse_suspended(broker_id)

    async def _carried_out(self) -> None:
        """Returns when every live broker has carried out what was decided so far."""
        # Decides nothing new.
        await self._decided(lambda done: self._node.controller.fence_brokers((), done))

    async def _decided(self, decide: Callable[[Callable[[ErrorCode], None]], object]) -> None:
        """Returns when every live broker has carried out a decision."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def carried_out(error: ErrorCode) -> None:
            if done.done():
                return  # The command was given up.
            if error:
                problem = f"The metadata log cannot be written ({error.name}): is the disk full?"
                done.set_exception(FencepostError(problem))
            else:
                done.set_result(None)

        decide(carried_out)
        await done

    def _refuse_held(self, broker_id: int) -> None:
        if self._parent.is_held(broker_id):
            raise FencepostError(
                f"Broker {broker_id} was killed by another command, and stays dead until it is "
                "restarted."
            )

    def _refuse_suspended(self, broker_id: int) -> None:
        child = self._parent.broker(broker_id).child
        if self._parent.is_suspended(broker_id) and child is not None:
            raise FencepostError(
                f"Broker {broker_id} was killed, but the kernel does not let its process "
                f"{child.pid} end. Its partitions have no leader until it does."
            )


async def _stood_still(pid: int) -> None:
    """Returns when a process that got SIGSTOP stands still, or has ended."""
    how = os.WSTOPPED | os.WEXITED | os.WNOWAIT  # It is reaped elsewhere.
    with contextlib.suppress(ChildProcessError):
        await asyncio.to_thread(os.waitid, os.P_PID, pid, how)
