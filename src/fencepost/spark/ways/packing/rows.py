"""The columns of the sink: those of Spark's own Kafka sink, under the same names.

key        string or binary, may be missing or null
value      string or binary, required; null is a tombstone
topic      string, required unless the sink has a topic (which then wins)
partition  int, may be missing or null; then the key decides
headers    array<struct<key: string, value: binary>>, may be missing or null
timestamp  timestamp, may be missing or null; ignored, as by Spark's own sink, unless the user asks
           for it. It travels as `timestamp_ms`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.spark.engine.frames import spark_columns
from fencepost.spark.failures import SinkRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_TYPES: Final = {
    "key": ("string", "binary", "void"),
    "value": ("string", "binary", "void"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_CAST: Final = {name: "binary" if "binary" in types else types[0] for name, types in _TYPES.items()}

TIMESTAMP: Final = "timestamp"
TIMESTAMP_MS: Final = "timestamp_ms"
"""The time of a row in milliseconds; null: the time of its writing."""


def are_ready(schema: StructType, topic: str | None) -> bool:
    """Whether there is nothing to select, drop or cast.

    Text is cast by Spark, even though the driver could encode it: a string of Spark's may hold
    bytes that are not UTF-8 (binary that was cast), and Python would not return those unchanged.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    needed = {"value"} if topic is not None else {"value", "topic"}
    # Two columns of the same name are for Spark to refuse: a row as a dict would have one of them.
    is_plain = len(types) == len(schema.fields) and needed <= types.keys()
    return is_plain and all(
        found in _TYPES.get(name, ()) and found in (_CAST[name], "void")
        for name, found in types.items()
    )


def select_rows(df: DataFrame, topic: str | None, *, with_times: bool = False) -> DataFrame:
    """The columns that become records, in their final types; SinkRefused names what is wrong."""
    schema = df.schema
    wanted = wanted_columns(schema, topic)
    found = [f"CAST(`{name}` AS {_CAST[name]}) AS `{name}`" for name in wanted]
    if with_times and _has_times(schema):
        found.append(f"unix_millis(`{TIMESTAMP}`) AS `{TIMESTAMP_MS}`")
    return df.selectExpr(*found)


def _has_times(schema: StructType) -> bool:
    """Whether the rows have times; SinkRefused if the column is something else."""
    types = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    found = types.get(TIMESTAMP)
    if found not in (None, "timestamp"):
        raise SinkRefused(f"the column {TIMESTAMP!r} is {found}, and must be timestamp: cast it")
    return found is not None


def select_columns(
    batch: pa.RecordBatch, topic: str | None, *, with_times: bool = False
) -> pa.RecordBatch:
    """As `select_rows`, for rows whose columns are known only in the task."""
    import pyarrow as pa

    columns = {
        name.lower(): column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name.lower() in _TYPES or name.lower() == TIMESTAMP
    }
    found = spark_columns(pa.schema([(n, column.type) for n, column in columns.items()]))
    wanted = wanted_columns(found, topic)
    # Both forms of text and bytes have the same layout, so nothing is copied.
    types = {"binary": pa.binary(), "string": pa.string()}
    arrays = [
        columns[name].cast(types[_CAST[name]]) if _CAST[name] in types else columns[name]
        for name in wanted
    ]
    if with_times and _has_times(found):
        milliseconds = columns[TIMESTAMP].cast(pa.timestamp("ms"), safe=False)
        return pa.RecordBatch.from_arrays(
            [*arrays, milliseconds.cast(pa.int64())], names=[*wanted, TIMESTAMP_MS]
        )
    return pa.RecordBatch.from_arrays(arrays, names=wanted)


def wanted_columns(schema: StructType, topic: str | None) -> list[str]:
    """The columns that become records; SinkRefused names what is wrong with them."""
    types = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise SinkRefused(
            f"the DataFrame has no column 'value' (it has {', '.join(types) or 'none'}): "
            "name the column to write 'value', for instance with "
            'selectExpr("to_json(struct(*)) AS value")'
        )
    if topic is None and "topic" not in types:
        raise SinkRefused(
            "the DataFrame has no column 'topic': add one, or pass topic= to the sink"
        )
    wanted = [
        name for name in _TYPES if name in types and not (name == "topic" and topic is not None)
    ]
    for name in wanted:
        _check_type(name, types[name])
    return wanted


def _check_type(name: str, found: str) -> None:
    allowed = _TYPES[name]
    if found.startswith(("varchar", "char")):
        found = "string"
    if found not in allowed:
        raise SinkRefused(
            f"the column {name!r} is {found}, and must be "
            f"{' or '.join(a for a in allowed if a != 'void')}: cast it"
        )
