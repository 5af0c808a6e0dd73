"""The cluster that FENCEPOST_TEST_BOOTSTRAP names, in the place of a broker of our own.

    FENCEPOST_TEST_BOOTSTRAP=127.0.0.1:9092 pytest

The fixtures then yield a `NamedCluster`: the words of `Broker`, on Apache Kafka for instance. Its
clients go through a proxy, which carries the faults (`fault_proxy.py`); what the words of
`Contents` ask goes straight to the cluster. What needs the inside of a broker skips the test, with
the reason: it cannot crash, restart, go back, or have another time.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self

from fencepost.base.arguments import checked
from fencepost.broker.faults.faults import EXEMPT_CLIENT
from fencepost.testing.contents import Contents
from fencepost.testing.fault_proxy import FaultProxy
from fencepost.testing.faults import Faults

if TYPE_CHECKING:
    from fencepost.client.blocking import Cluster as Client

VARIABLE: Final = "FENCEPOST_TEST_BOOTSTRAP"


def skip(what: str) -> NoReturn:
    """Skips the test."""
    import pytest

    pytest.skip(f"{what}: {VARIABLE} names a cluster that is not this test's own")


class ProxyFaults(Faults):
    """Faults that a proxy carries out; it cannot crash the broker behind it."""

    def refuse_crash(self) -> None:
        skip("no crash")


@checked
class NamedCluster(Contents):
    """A cluster that runs already, behind a proxy with faults."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._proxy = proxy = FaultProxy(bootstrap_servers)
        self.faults: Faults = ProxyFaults(proxy.call, lambda _: skip("no crash"))
        """What goes wrong on demand."""
        proxy.on_problem = self.faults.note_problem

    def __enter__(self) -> Self:
        self._proxy.start()
        self.faults.attach(self._proxy)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self._servers} through {self._proxy.address or 'a closed proxy'}>"

    @property
    def bootstrap_servers(self) -> str:
        """The address of the proxy, for the clients under test."""
        return self._proxy.address

    def _connect(self) -> Client:
        from fencepost.client.blocking import connect

        return connect(self._servers, {"client.id": EXEMPT_CLIENT})

    def close(self) -> None:
        """Closes the proxy, and cuts the connections through it."""
        self.faults.detach()
        self._proxy.close()

    # -- what needs the inside of a broker

    @property
    def clock(self) -> NoReturn:
        """Skips the test: the time of a cluster is the real one."""
        skip("time does not pass by itself")

    @property
    def denials(self) -> NoReturn:
        """It has listeners without a login."""
        skip("no denials")

    @property
    def node(self) -> NoReturn:
        """Skips the test."""
        skip("no node")

    @property
    def data(self) -> NoReturn:
        """Skips the test."""
        skip("no directory")

    @property
    def metrics_url(self) -> NoReturn:
        """Skips the test."""
        skip("no metrics of fencepost")

    def call(self, *_: object) -> NoReturn:
        """Skips the test."""
        skip("no node")

    def start(self) -> NoReturn:
        """Skips the test."""
        skip("no start")

    def stop(self) -> NoReturn:
        """Skips the test."""
        skip("no stop")

    def restart(self) -> NoReturn:
        """Skips the test."""
        skip("no restart")

    def crash(self) -> NoReturn:
        """Skips the test."""
        skip("no crash")

    def snapshot(self) -> NoReturn:
        """Skips the test."""
        skip("no snapshot")

    def restore(self, *_: object) -> NoReturn:
        """Skips the test."""
        skip("no snapshot")
