"""The ids of the runtime's own services: each written here, and nowhere else."""

from typing import Final

from things.identity import RESERVED_ACCOUNTS

ACCOUNTS: Final = "dtw:authn:admin"
OWN_ACCOUNT: Final = "dtw:authn:user"
RIGHTS: Final = "dtw:authz:admin"
OWN_RIGHTS: Final = "dtw:authz:user"
REQUESTS: Final = "dtw:skep:requests"
NODE: Final = "dtw:skep:node"
RUNTIME: Final = "dtw:skep:admin"
"""Nothing answers here; the id is kept for the administration of the runtime itself."""
LAKE: Final = "dtw:history:lake"
HISTORY: Final = "dtw:history:readings"
DIRECTORY: Final = "dtw:directory:things"
MODELS: Final = "dtw:directory:models"
VALUES: Final = "dtw:values:latest"


def is_service(thing_id: str) -> bool:
    """Whether the id belongs to an account of the runtime itself."""
    prefix, _, rest = thing_id.partition(":")
    return prefix == "dtw" and rest.partition(":")[0] in RESERVED_ACCOUNTS
