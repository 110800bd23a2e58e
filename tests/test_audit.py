"""The audit says what it did not check, forgives only what somebody has looked at, and lists everything installed."""

import importlib.util
import json
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["audit"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_package_that_was_skipped_is_not_one_without_weaknesses(audit: ModuleType) -> None:
    known = audit.Advisories(unasked={"anyio 4.0", "click 8.0", "pip 1.0"})
    known.take(
        {
            "dependencies": [
                {"name": "anyio", "version": "4.0", "vulns": []},
                {"name": "click", "skip_reason": "not found"},
                {"name": "pip", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]},
            ]
        }
    )

    assert list(known.lines()) == [
        "  pip 1.0: CVE-1, mended in 1.1",
        "advisories: 1 against 2 of 3 installed packages",
        "NOT CHECKED against advisories: 1 of 3 packages",
        "  click 8.0",
    ]


def test_only_reviewed_findings_are_passed_over(audit: ModuleType) -> None:
    def finding(test: str, file: str) -> dict[str, Any]:
        return {"test_id": test, "filename": file, "line_number": 3, "issue_text": "bad"}

    reviewed = {"B608": {"a.py": {"found": 1, "because": "fixed names"}}}
    found = [finding("B608", "./a.py"), finding("B608", "b.py"), finding("B104", "a.py")]
    assert audit.unreviewed(found, reviewed) == ["b.py:3: B608 bad", "a.py:3: B104 bad"]
    assert audit.unreviewed([finding("B608", "a.py")] * 2, reviewed) == ["a.py:3: B608 bad"] * 2


def test_reviewed_files_exist_and_have_reasons() -> None:
    reviewed = tomllib.loads((ROOT / ".ci" / "reviewed.toml").read_text("utf-8"))
    for files in reviewed.values():
        for file, review in files.items():
            assert (ROOT / file).is_file(), file
            assert review["found"] > 0, file
            assert len(review["because"]) > 10, file


def test_the_bill_lists_what_is_installed(audit: ModuleType) -> None:
    bill = json.loads(json.dumps(audit.bill(audit.installed())))
    (found,) = [one for one in bill["components"] if one["name"].lower() == "anyio"]

    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert found["purl"] == f"pkg:pypi/anyio@{version('anyio')}"
    assert len(bill["components"]) > 30
    assert "skep" not in [one["name"] for one in bill["components"]]
