"""The data source `skep`: `register(session)`, then `session.read.format("skep")`."""

from spark.sources.source import SkepSource, register

__all__ = ["SkepSource", "register"]
