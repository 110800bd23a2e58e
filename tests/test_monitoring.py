"""Dashboard, alerts and documentation name metrics that exist, and the documentation names them all."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import skep

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "container"
_NAME = re.compile(r"\b((?:skep|process)_[a-z_]+)\b")
_SUFFIX = re.compile(r"_(?:bucket|sum|count|info)$")


@pytest.fixture
async def families(tmp_path: Path) -> frozenset[str]:
    """Names of all families that a runtime measures, as they are written in queries (counters with `_total`)."""
    async with skep(tmp_path) as house, httpx.AsyncClient(base_url=house.http) as client:
        text = (await client.get("/metrics")).text
    found = set()
    for family in text_string_to_metric_families(text):
        found.add(f"{family.name}_total" if family.type == "counter" else _SUFFIX.sub("", family.name))
    # Measured once there is one.
    return frozenset(found | {"skep_backup_age_seconds"})


def _queries(of: Any) -> Iterator[str]:
    if isinstance(of, dict):
        for key, value in of.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from _queries(value)
    elif isinstance(of, list):
        for value in of:
            yield from _queries(value)


def _named(queries: Iterator[str]) -> set[str]:
    return {_SUFFIX.sub("", name) for query in queries for name in _NAME.findall(query)}


async def test_dashboard_and_alerts_ask_for_what_is_measured(families: frozenset[str]) -> None:
    dashboard = json.loads((EXAMPLE / "grafana" / "dashboards" / "skep.json").read_text())
    alerts = yaml.safe_load((EXAMPLE / "alerts.yaml").read_text())
    shown, alerted = _named(_queries(dashboard)), _named(_queries(alerts))
    assert len(shown) > 15
    assert len(alerted) > 8
    assert shown | alerted <= families


async def test_documentation_names_every_metric(families: frozenset[str]) -> None:
    documented = set(re.findall(r"^\| `(skep_[a-z_]+)", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE))
    assert documented == {name for name in families if name.startswith("skep_")}


def test_every_alert_says_what_to_do() -> None:
    (group,) = yaml.safe_load((EXAMPLE / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_panels_do_not_overlap() -> None:
    panels = json.loads((EXAMPLE / "grafana" / "dashboards" / "skep.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not installed")
def test_prometheus_takes_alerts() -> None:
    done = subprocess.run(["promtool", "check", "rules", EXAMPLE / "alerts.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_compose_file_mounts_what_is_there() -> None:
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service["volumes"]
        if isinstance(volume, str) and volume.startswith("./")
    ]
    made = {"./metrics.token", "./ca.pem"}  # by the commands at the top of the file
    missing = [path for path in mounted if path not in made and not (EXAMPLE / path).exists()]
    assert mounted
    assert not missing
    assert services["skep"]["read_only"] is True
    assert [name for name, service in services.items() if "skep:/var/lib/skep" in service["volumes"]] == ["skep"]
