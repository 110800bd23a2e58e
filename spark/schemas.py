"""Spark schemas of the lake's tables, built from the same plain data as the writer's."""

from collections.abc import Sequence

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from things.lake import (
    PRESENCE_COLUMNS,
    READINGS_COLUMNS,
    REQUESTS_COLUMNS,
    ROLLUPS_COLUMNS,
    THINGS_COLUMNS,
    ColumnType,
)
from things.lake import Column as LakeColumn

SPARK_TYPES: dict[ColumnType, DataType] = {
    ColumnType.LONG: LongType(),
    ColumnType.INT: IntegerType(),
    ColumnType.DOUBLE: DoubleType(),
    ColumnType.BOOL: BooleanType(),
    ColumnType.STRING: StringType(),
    ColumnType.TIMESTAMP: TimestampType(),
}

_GATEWAY = StructField("gateway", StringType())
_DAY = StructField("day", DateType())


def struct_of(columns: Sequence[LakeColumn]) -> StructType:
    """Lake columns as a Spark struct. All nullable: Spark drops the promise when it reads files anyway."""
    return StructType([StructField(column.name, SPARK_TYPES[column.type]) for column in columns])


def _partitioned(columns: Sequence[LakeColumn], *partitions: StructField) -> StructType:
    return StructType([*struct_of(columns).fields, *partitions])


READINGS = _partitioned(READINGS_COLUMNS, _GATEWAY, _DAY)
THINGS = _partitioned(THINGS_COLUMNS, _GATEWAY)
PRESENCE = _partitioned(PRESENCE_COLUMNS, _GATEWAY)
REQUESTS = _partitioned(REQUESTS_COLUMNS, _GATEWAY, _DAY)
ROLLUPS = StructType([_GATEWAY, *struct_of(ROLLUPS_COLUMNS).fields])
"""What a roll-up returns; in the lake `gateway` and `day` are folders."""
