"""A start imports what every runtime needs. What one kind of command or gateway needs comes when it is asked for."""

import json
import subprocess
import sys

NOT_AT_THE_START = {
    "pyarrow": "the lake, in a process of its own",
    "duckdb": "the same",
    "numpy": "the same",
    "pandas": "Spark and data frames of the SDK",
    "pyspark": "jobs",
    "matplotlib": "skep plot",
    "httpx2": "what the messaging node asks services outside, and the SDK",
    "amqtt": "the other MQTT engine",
    "zeroconf": "discovery.mdns",
    "psycopg": "database_url",
    "sqlalchemy.dialects.postgresql": "the same",
    "segno": "the claim's QR code, on a terminal",
    "tarfile": "backups in one file, in a process of their own",
    "gateway.repair": "skep repair",
    "gateway.upgrading": "skep upgrade",
    "gateway.backup.taking": "backups, in a process of their own",
    "skep.agent": "the SDK",
}


def test_a_start_imports_nothing_that_only_some_need() -> None:
    program = "import json, sys; import skep.cli.run, gateway.app; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    found = set(json.loads(printed.stdout))

    assert "gateway.app" in found
    assert not {name: why for name, why in NOT_AT_THE_START.items() if name in found}
