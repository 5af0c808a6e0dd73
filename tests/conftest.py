"""What every test shares: how hypothesis behaves.

Machines differ and others may be busy on this one, so no example has a deadline. In continuous
integration the examples are the same on every run: a change fails because of what it changed, and
never by the luck of the draw.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")
