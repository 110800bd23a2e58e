"""How a job runs from a command line: parse, read, transform, write; refusals become one sentence and an exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pydantic_core import to_json
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark import lake as lakes
from spark.jobs.locks import only_job
from spark.jobs.options import lake_of, show
from spark.jobs.publishing import publish, target_of
from spark.session import opened
from things.errors import Invalid, SkepError

FAILED, REFUSED = 1, 2

Build = Callable[[SparkSession, str, argparse.Namespace], DataFrame]
"""Makes the job's table of a session, a lake and the options."""


def run_job(
    options_parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    build: Build,
    *,
    title: str,
    time_column: str,
) -> int:
    """0 when the table was shown, and written where that was asked for; otherwise says why on stderr."""
    options = options_parser.parse_args(arguments)
    title = title.format(**vars(options))
    try:
        target = target_of(options)
        lake = lake_of(options)
        with only_job(options.out), only_job(lake, "_jobs", options.publish):
            _step(options, 5, "starting")
            session = opened(options_parser.prog, master=options.master, remote=options.remote)
            _step(options, 20, "computing")
            frame = build(session, lake, options)
            if target is None and not options.steps:
                if options.out:
                    write(frame, options.out, time_column)
                show(frame, as_json=options.json, title=title)
                return 0
            # Counted, written and published: computed once.
            frame = frame.persist()
            rows = frame.count()
            if options.out:
                write(frame, options.out, time_column)
            if target is not None:
                _step(options, 70, "publishing")
                publish(frame, target, title=title, time_column=time_column)
            if not options.steps:
                show(frame, as_json=options.json, title=title)
            _step(options, 100, "done", rows=rows)
    except SkepError as error:
        print(f"error: {error.detail} ({error.code})", file=sys.stderr)
        return REFUSED if isinstance(error, Invalid) else FAILED
    except (PySparkException, Py4JError) as error:
        # A task that fails while rows are fetched one by one comes as the bridge's own error.
        damage = lakes.damage(str(error))
        said = f"{damage.detail} ({damage.code})" if damage else f"Spark refused: {str(error).splitlines()[0]}"
        print(f"error: {said}", file=sys.stderr)
        return FAILED
    return 0


def write(frame: DataFrame, out: str, time_column: str) -> None:
    """The table as Parquet by gateway and day, one file each. A day that is written again is replaced; others stay."""
    days = frame.withColumn("day", F.to_date(time_column))
    order = [name for name in ("thing_id", "agent_id", "name", time_column) if name in frame.columns]
    (
        days.repartition("gateway", "day")
        .sortWithinPartitions("gateway", "day", *order)
        .write.partitionBy("gateway", "day")
        .option("partitionOverwriteMode", "dynamic")
        .mode("overwrite")
        .parquet(out)
    )


def _step(options: argparse.Namespace, percent: int, doing: str, **members: int) -> None:
    if options.steps:
        print(to_json({"percent": percent, "doing": doing, **members}).decode(), flush=True)
