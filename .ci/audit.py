"""What is known against what is installed (pip-audit), against our own code (bandit), and a bill of materials.

    python .ci/audit.py

Exit code 1: something was found. What could not be asked is said, by name and reason, and fails nothing: an audit
without a network still checks the code and writes `build/sbom.json` (CycloneDX 1.5).
"""

import json
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CODE = ("skep", "gateway", "things", "runtime", "bindings", "twin", "authn", "authz", "spark")
SERVICES = {"pypi": "the package index", "osv": "OSV"}
"""Who may know of weaknesses: what the first does not know, the next is asked about."""


@dataclass
class Advisories:
    """What was said of installed packages, each `name version`."""

    asked: set[str] = field(default_factory=set)
    unasked: set[str] = field(default_factory=set)
    weaknesses: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def take(self, report: Mapping[str, Any]) -> None:
        """Add what pip-audit reports as JSON. A package it skips is not one without weaknesses."""
        for package in report["dependencies"]:
            if "skip_reason" in package:
                continue
            name = f"{canonical(package['name'])} {package['version']}"
            self.asked.add(name)
            self.unasked.discard(name)
            for found in package["vulns"]:
                fixed = ", ".join(found["fix_versions"]) or "no version"
                self.weaknesses.append(f"{name}: {found['id']}, mended in {fixed}")

    def lines(self) -> Iterable[str]:
        total = len(self.asked) + len(self.unasked)
        yield from (f"  {one}" for one in sorted(self.weaknesses))
        yield f"advisories: {len(self.weaknesses)} against {len(self.asked)} of {total} installed packages"
        if self.unasked:
            yield f"NOT CHECKED against advisories: {len(self.unasked)} of {total} packages"
            yield from (f"  {reason}" for reason in self.reasons)
            yield f"  {', '.join(sorted(self.unasked))}"


def canonical(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> list[Distribution]:
    """Distributions of this environment but our own, by name."""
    found = {str(one.metadata["Name"]).lower(): one for one in distributions() if one.metadata["Name"]}
    return [one for name, one in sorted(found.items()) if name != "skep"]


def advisories(tools: Path, packages: Sequence[Distribution]) -> Advisories:
    """Ask every service about what is still unknown."""
    found = Advisories(unasked={f"{canonical(one.metadata['Name'])} {one.version}" for one in packages})
    folder = next(path for path in sys.path if path.endswith("site-packages"))
    for service, called in SERVICES.items():
        if not found.unasked:
            break
        command = [str(tools / "pip-audit"), "--path", folder, "--skip-editable", "-s", service, "-f", "json"]
        said = _run([*command, "--progress-spinner", "off", "--timeout", "15"])
        try:
            report = json.loads(said.stdout)
        except ValueError:
            last = (said.stderr.strip().splitlines() or ["no answer"])[-1]
            found.reasons.append(f"{called} cannot be reached: {last[:160]}")
            continue
        found.take(report)
        if found.unasked:
            found.reasons.append(f"{called} has no advisories about them")
    return found


def unreviewed(findings: Iterable[Mapping[str, Any]], reviewed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What bandit finds that nobody has looked at: all of a kind in a file, as soon as there are more or fewer."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in findings:
        kinds.setdefault((one["test_id"], one["filename"].removeprefix("./")), []).append(one)
    return [
        f"{file}:{one['line_number']}: {test} {one['issue_text']}"
        for (test, file), found in kinds.items()
        if reviewed.get(test, {}).get(file, {}).get("found", 0) != len(found)
        for one in found
    ]


def bill(packages: Sequence[Distribution]) -> dict[str, Any]:
    """The bill of materials, CycloneDX 1.5."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {"type": "application", "name": "skep", "version": _own_version()},
        },
        "components": [_component(one) for one in packages],
    }


def _component(one: Distribution) -> dict[str, Any]:
    name, version = str(one.metadata["Name"]), one.version
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{canonical(name)}@{version}",
    }
    if "License-Expression" in one.metadata:
        found["licenses"] = [{"expression": one.metadata["License-Expression"]}]
    return found


def _own_version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _tools() -> Path | str:
    """Where the tools are, installed once beside the environment; else why they cannot be."""
    folder = Path(sys.prefix) / "audit"
    if not (folder / "bin" / "bandit").exists():
        made = _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        made = made if made.returncode else _run([*pip, "pip-audit", "bandit"])
        if made.returncode:
            return (made.stderr.strip().splitlines() or ["no reason given"])[-1][:200]
    return folder / "bin"


def main() -> int:
    packages = installed()
    target = ROOT / "build" / "sbom.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(bill(packages), indent=1) + "\n", "utf-8")
    print(f"bill of materials: {len(packages)} packages in {target.relative_to(ROOT)}")

    tools = _tools()
    if isinstance(tools, str):
        print(f"NOT CHECKED: advisories and code; pip-audit and bandit cannot be installed: {tools}")
        return 0
    known = advisories(tools, packages)
    print("\n".join(known.lines()))

    said = _run([str(tools / "bandit"), "-q", "-r", *CODE, "-ll", "-f", "json"])
    findings = json.loads(said.stdout)["results"]
    reviewed = tomllib.loads((ROOT / ".ci" / "reviewed.toml").read_text("utf-8"))
    open_ = unreviewed(findings, reviewed)
    print("\n".join(f"  {one}" for one in open_), end="\n" if open_ else "")
    print(f"code: {len(open_)} findings to look at, {len(findings) - len(open_)} reviewed (.ci/reviewed.toml)")
    return 1 if known.weaknesses or open_ else 0


if __name__ == "__main__":
    sys.exit(main())
