"""Registers `format("fencepost")`: Spark loads modules named `pyspark_*` itself."""

from __future__ import annotations

from fencepost.spark.data_source import FencepostSource as DefaultSource

__all__ = ["DefaultSource"]
