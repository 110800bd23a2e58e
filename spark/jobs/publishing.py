"""A job's table as a virtual Thing of the account whose token SKEP_TOKEN holds."""

import argparse
import os
from typing import NamedTuple

from pyspark.sql import DataFrame

from spark.sources import register
from things.errors import Invalid
from things.names import checked_thing
from things.service_ids import LAKE

MAX_SOURCES = 200
"""More Things than these are not listed one by one: the table is then said to come from the lake."""


class Target(NamedTuple):
    """Where a table is published."""

    thing: str
    url: str
    token: str
    ca: str | None


def target_of(options: argparse.Namespace) -> Target | None:
    """What the options say; None when nothing is published. Raises Invalid when something is missing."""
    if not options.publish:
        return None
    # Not an option: everybody on a machine may see the arguments of its processes.
    token = os.environ.get("SKEP_TOKEN")
    if not options.url or not token:
        raise Invalid("--publish needs --url, and the token in SKEP_TOKEN")
    return Target(checked_thing(options.publish), options.url, token, options.ca)


def publish(frame: DataFrame, target: Target, *, title: str, time_column: str) -> None:
    """Publish every row as an event. A row that is the same as one published before is not stored again."""
    register(frame.sparkSession)
    given = {"url": target.url, "token": target.token, "thing": target.thing, "title": title, "created": time_column}
    if target.ca is not None:
        given["ca"] = target.ca
    given["derivedFrom"] = ",".join(_sources(frame))
    # One task: rows reach the gateway in the table's order, and it has one writer anyway.
    frame.coalesce(1).write.format("skep").mode("append").options(**given).save()


def _sources(frame: DataFrame) -> list[str]:
    if "thing_id" not in frame.columns:
        return [LAKE]
    things = frame.select("thing_id").distinct().limit(MAX_SOURCES + 1).collect()
    return sorted(row.thing_id for row in things) if 0 < len(things) <= MAX_SOURCES else [LAKE]
