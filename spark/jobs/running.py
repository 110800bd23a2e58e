"""How a job is run from a command line: refusals become one sentence and an exit code, never a traceback."""

import sys
from collections.abc import Callable

from pyspark.errors import PySparkException

from things.errors import Invalid, SkepError

FAILED, REFUSED = 1, 2


def run_job(work: Callable[[], object]) -> int:
    """0 when `work` ended well; otherwise says why on stderr."""
    try:
        work()
    except SkepError as error:
        print(f"error: {error.detail} ({error.code})", file=sys.stderr)
        return REFUSED if isinstance(error, Invalid) else FAILED
    except PySparkException as error:
        print(f"error: Spark refused: {str(error).splitlines()[0]}", file=sys.stderr)
        return FAILED
    return 0
