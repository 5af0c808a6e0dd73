# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""WriteTxnMarkers (27): v1-2."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class WritableTxnMarkerTopic:
    name: str = field("string")
    partition_indexes: list[int] = field("[]int32")


@struct
class WritableTxnMarker:
    producer_id: int = field("int64")
    producer_epoch: int = field("int16")
    transaction_result: bool = field("bool")
    topics: list[WritableTxnMarkerTopic] = field("[]WritableTxnMarkerTopic")
    coordinator_epoch: int = field("int32")
    transaction_version: int = field("int8", versions="2+", default=0)


@message(versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = field("[]WritableTxnMarker")


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: int = field("int32")
    error_code: int = field("int16")


@struct
class WritableTxnMarkerTopicResult:
    name: str = field("string")
    partitions: list[WritableTxnMarkerPartitionResult] = field("[]WritableTxnMarkerPartitionResult")


@struct
class WritableTxnMarkerResult:
    producer_id: int = field("int64")
    topics: list[WritableTxnMarkerTopicResult] = field("[]WritableTxnMarkerTopicResult")


@message(versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = field("[]WritableTxnMarkerResult")
