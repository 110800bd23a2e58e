"""One backup as `[backup]` of the configuration says, in a process of its own: the runtime's loop and its writers keep
their processor time. Prints a JSON document: what was taken, or `{"error": {"code", "detail"}}`.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from gateway.backup.folders import refuse_missing
from gateway.backup.passphrases import passphrase_of
from gateway.backup.taken import last_taken
from gateway.backup.taking import take
from gateway.config import Config
from things.errors import Invalid, SkepError

NICE = 10


def main(home: Path) -> int:
    os.nice(NICE)
    try:
        config = Config.load(home)
        wanted = config.backup
        if wanted.to is None:
            raise Invalid("backup.to is not set")
        last = last_taken(home)
        if last is not None and Path(last.to) == Path(wanted.to).expanduser().absolute():
            refuse_missing(Path(last.to))
        taken = take(
            home,
            Path(wanted.to),
            config=config,
            keys=wanted.keys,
            lake=wanted.lake,
            passphrase=passphrase_of(Path(wanted.passphrase_file)) if wanted.passphrase_file else None,
            keep=wanted.keep,
            bytes_per_second=wanted.bytes_per_second,
        )
    except SkepError as error:
        print(json.dumps({"error": {"code": error.code, "detail": error.detail}}))
        return 1
    print(json.dumps(asdict(taken)))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
