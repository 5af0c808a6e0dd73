"""Makes `format("fencepost")` known to Spark: modules of this name are looked for by Spark itself."""

from __future__ import annotations

from fencepost.spark.source.data_source import FencepostSource as DefaultSource

__all__ = ["DefaultSource"]
