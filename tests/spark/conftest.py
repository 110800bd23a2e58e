"""One Spark for all tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import opened


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, few partitions: the frames have a handful of rows."""
    session = opened("skep tests", master="local[2]", options={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
