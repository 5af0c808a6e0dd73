"""Registers `format("fencepost")`: Spark loads modules named `pyspark_*` itself."""

from __future__ import annotations

from fencepost.spark.source.data_source import FencepostSource as DefaultSource

__all__ = ["DefaultSource"]
