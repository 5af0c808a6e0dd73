"""The fixtures of `fixtures.py`, to be named in a conftest.py.

    pytest_plugins = ["fencepost.testing.pytest_plugin"]

This is needed only where pytest does not load plugins itself (PYTEST_DISABLE_PLUGIN_AUTOLOAD), and
harmless elsewhere. It is a separate module because pytest refuses one module under two names.
"""

from __future__ import annotations

from fencepost.testing.fixtures import (
    fencepost_broker,
    fencepost_cluster,
    fencepost_cluster_size,
    fencepost_config,
    fencepost_namespace,
    fencepost_secure_broker,
    fencepost_security,
    fencepost_shared_broker,
    pytest_runtest_makereport,
)

__all__ = [
    "fencepost_broker",
    "fencepost_cluster",
    "fencepost_cluster_size",
    "fencepost_config",
    "fencepost_namespace",
    "fencepost_secure_broker",
    "fencepost_security",
    "fencepost_shared_broker",
    "pytest_runtest_makereport",
]
