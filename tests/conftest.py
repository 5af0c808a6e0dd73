"""Settings for all tests: of Hypothesis, and of the Java that Spark and Apache Kafka run on.

Machines differ and may be busy, so no example has a deadline. In continuous integration the
examples are the same on every run, so a failure comes from the change and not from chance.

A test's query ends before the optimising compiler of the JVM has paid for itself: without it, and
with the simplest garbage collector, Spark needs two thirds of the processor time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Every JVM reads it, also those of the programs that tests start.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
