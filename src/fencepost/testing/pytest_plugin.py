"""The fixtures of `fixtures.py` for whoever names them in a conftest.py:

    pytest_plugins = ["fencepost.testing.pytest_plugin"]

That is needed only where pytest does not look for plugins itself (PYTEST_DISABLE_PLUGIN_AUTOLOAD),
and does no harm elsewhere. It is a module of its own because pytest refuses one module under two
names.
"""

from __future__ import annotations

from fencepost.testing.fixtures import (
    fencepost_broker,
    fencepost_config,
    fencepost_shared_broker,
)

__all__ = ["fencepost_broker", "fencepost_config", "fencepost_shared_broker"]
