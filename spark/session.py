"""The Spark session of our jobs: UTC, adaptive, Arrow between Python and the JVM, quiet, and small on one machine.

A cluster's own configuration wins where a job is submitted to one; nothing here reaches into the JVM, so the same code
runs over Spark Connect.
"""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark.java import use_java

DRIVER_MEMORY = "1g"
"""On one machine, where the driver does the work; SKEP_SPARK_MEMORY overrides it."""
LOCAL_PARTITIONS = 8

_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Writing one day again replaces that day, not the table.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "true",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(LOCAL_PARTITIONS),
    # The manifest names the files; asking this machine for their sizes is no work for a job of its own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}


def opened(
    app: str = "skep",
    *,
    master: str | None = None,
    remote: str | None = None,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session to work in: over Spark Connect with `remote` (`sc://host:port`) or SPARK_REMOTE, else on `master`,
    else as the surrounding `spark-submit` says, else on all cores of this machine."""
    builder = SparkSession.builder.appName(app)
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    settings = dict(_ALWAYS)
    if remote:
        builder = builder.remote(remote)
    else:
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        if not submitted:
            use_java()
            master = master or os.environ.get("MASTER") or "local[*]"
            if master.startswith("local"):
                # Else Spark looks for an address of this host, warns about it, and may listen on it.
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
                # Else the workers run whatever python3 comes first on PATH, without our packages.
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master:
            builder = builder.master(master)
        if master and master.startswith("local"):
            memory = os.environ.get("SKEP_SPARK_MEMORY", DRIVER_MEMORY)
            settings = {**_LOCAL, "spark.driver.memory": memory, **settings}
    for key, value in {**settings, **(options or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
