"""One wide table for all Things of a model: a column for each affordance, typed as its data schema says.

A model is a term of a Thing Description's `@type`, or the target of its `type` link. Unit, minimum, maximum and title
of a column are in its metadata.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from things.errors import NotFound
from things.schemas import value_type

KEY = ("gateway", "thing_id", "created")
_SPARK: Mapping[str, DataType] = {
    "value_double": DoubleType(),
    "value_long": LongType(),
    "value_bool": BooleanType(),
    "value_string": StringType(),
    "value_json": StringType(),
}
_ARROW = {
    "value_double": pa.float64(),
    "value_long": pa.int64(),
    "value_bool": pa.bool_(),
    "value_string": pa.string(),
    "value_json": pa.string(),
}
_FOR_TYPE = {"number": "value_double", "integer": "value_long", "boolean": "value_bool", "string": "value_string"}
_KEPT = ("unit", "minimum", "maximum", "title")


class ModelColumn(NamedTuple):
    """One affordance: its kind and name, the lake's column that holds its values, and what its schema says of them."""

    kind: str
    name: str
    source: str
    metadata: dict[str, Any]


class Model(NamedTuple):
    """The Things of a model, and their columns."""

    things: Sequence[tuple[str, str]]
    columns: Sequence[ModelColumn]

    def schema(self) -> StructType:
        keys = [
            StructField("gateway", StringType()),
            StructField("thing_id", StringType()),
            StructField("created", TimestampType()),
        ]
        return StructType(keys + [StructField(c.name, _SPARK[c.source], metadata=c.metadata) for c in self.columns])


def model_of(name: str, descriptions: Iterable[tuple[str, str, str]]) -> Model:
    """The model by that name, of (gateway, Thing, TD text). Where Things disagree on a type, the wider one counts:
    number for integers and numbers, JSON text otherwise. Raises NotFound when no Thing is of it."""
    things: list[tuple[str, str]] = []
    columns: dict[tuple[str, str], ModelColumn] = {}
    for gateway, thing_id, text in descriptions:
        document = from_json(text)
        if not isinstance(document, dict) or name not in _models(document):
            continue
        things.append((gateway, thing_id))
        for column in _columns(document):
            key = (column.kind, column.name)
            known = columns.get(key)
            columns[key] = column if known is None else _wider(known, column)
    if not things:
        raise NotFound(f"no Thing in the lake is of the model {name!r}")
    names: dict[str, ModelColumn] = {}
    for column in sorted(columns.values()):
        # A property and an event of one name would be one column: the property has it.
        if column.name not in KEY and (column.kind == "property" or column.name not in names):
            names[column.name] = column
    return Model(things, list(names.values()))


def wide(batches: Iterable[pa.RecordBatch], model: Model) -> Iterator[pa.RecordBatch]:
    """Readings as rows by Thing and time; of two readings of one affordance at one time the later row counts. All rows
    of one time must be among the batches."""
    found = list(batches)
    if not found:
        return
    table = pa.Table.from_batches(found).sort_by("row_id")
    gateway = table["gateway"][0].as_py()
    mine = pc.is_in(table["thing_id"], pa.array([thing for own, thing in model.things if own == gateway], pa.string()))
    table = table.filter(mine)
    columns = {name: table[name] for name in KEY}
    for column in model.columns:
        is_own = pc.and_(pc.equal(table["name"], column.name), pc.equal(table["kind"], column.kind))
        value = pc.if_else(is_own, _values(table, column.source), pa.scalar(None, _ARROW[column.source]))
        columns[f"v {column.name}"] = value
    spread = pa.table(columns)
    last = [(f"v {column.name}", "last") for column in model.columns]
    grouped = spread.group_by(list(KEY), use_threads=False).aggregate(last)
    ordered = [*KEY, *(f"v {column.name}_last" for column in model.columns)]
    renamed = grouped.select(ordered).rename_columns([*KEY, *(column.name for column in model.columns)])
    any_value = None
    for column in model.columns:
        is_set = pc.is_valid(renamed[column.name])
        any_value = is_set if any_value is None else pc.or_(any_value, is_set)
    yield from (renamed if any_value is None else renamed.filter(any_value)).to_batches()


def _values(table: pa.Table, source: str) -> Any:
    if source != "value_json":
        return table[source]
    # JSON text stands for any value; a string keeps its quotes off, as `value_string` has it.
    texts = [table["value_json"], table["value_string"]]
    for name in ("value_long", "value_bool", "value_double"):
        texts.append(pc.cast(table[name], pa.string()))
    return pc.coalesce(*texts)


def _models(document: Mapping[str, Any]) -> set[str]:
    types = document.get("@type")
    found = {types} if isinstance(types, str) else {item for item in types or () if isinstance(item, str)}
    links = document.get("links")
    for link in links if isinstance(links, list) else ():
        if isinstance(link, dict) and link.get("rel") == "type" and isinstance(link.get("href"), str):
            found.add(link["href"])
    return found


def _columns(document: Mapping[str, Any]) -> Iterator[ModelColumn]:
    for kind, plural in (("property", "properties"), ("event", "events")):
        affordances = document.get(plural)
        for name, definition in affordances.items() if isinstance(affordances, dict) else ():
            schema = definition.get("data") if kind == "event" and isinstance(definition, dict) else definition
            schema = schema if isinstance(schema, dict) else {}
            metadata = {key: schema[key] for key in _KEPT if isinstance(schema.get(key), str | int | float)}
            title = definition.get("title") if isinstance(definition, dict) else None
            if isinstance(title, str):
                metadata["title"] = title
            source = _FOR_TYPE.get(value_type(schema) or "", "value_json")
            yield ModelColumn(kind, name, source, {"kind": kind, **metadata})


def _wider(one: ModelColumn, other: ModelColumn) -> ModelColumn:
    if one.source == other.source:
        return one
    numbers = {"value_double", "value_long"}
    source = "value_double" if {one.source, other.source} == numbers else "value_json"
    return one._replace(source=source)
