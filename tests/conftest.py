"""Settings of Hypothesis for all tests.

Machines differ and may be busy, so no example has a deadline. In continuous integration the
examples are the same on every run, so a failure comes from the change and not from chance.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")
