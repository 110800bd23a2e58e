"""`make bench`: every benchmark in turn, each in a process of its own; one that fails does not stop the others."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST_S = 900


def main() -> int:
    """The exit code: 1 if a benchmark could not be run to its end."""
    failed = []
    for path in sorted(ROOT.glob("bench/**/bench_*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        print(f"\n== {module}", flush=True)
        try:
            code = subprocess.run([sys.executable, "-m", module], cwd=ROOT, timeout=LONGEST_S).returncode
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            failed.append(module)
    if failed:
        print(f"\nnot run to their end: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
