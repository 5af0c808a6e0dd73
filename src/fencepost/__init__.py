"""fencepost: exactly-once for Python data teams.

A Kafka-wire-compatible transactional broker that installs with pip, and an exactly-once Kafka
pipeline on Spark.

    with fencepost.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

`fencepost.Cluster` is the same with several broker processes, and `fencepost.Security` gives either
of them users, TLS and ACLs. `fencepost.Contents` asks any broker what is in it, for tests.

Importing this package is cheap: what is heavy is imported by the part that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.testing.cluster import Cluster
    from fencepost.testing.contents import Contents
    from fencepost.testing.embedded import Broker
    from fencepost.testing.security import Security

__all__ = ["Broker", "Cluster", "Contents", "Security", "__version__"]
__version__ = "0.1.0"


_MODULES: Final = {
    "Broker": "fencepost.testing.embedded",
    "Cluster": "fencepost.testing.cluster",
    "Contents": "fencepost.testing.contents",
    "Security": "fencepost.testing.security",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        found: object = getattr(import_module(_MODULES[name]), name)
        return found
    raise AttributeError(f"module 'fencepost' has no attribute {name!r}")


def __dir__() -> list[str]:
    # What is imported on first use, too; and of the other names none that users do not need.
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
