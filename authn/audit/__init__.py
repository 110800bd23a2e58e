"""The audit log: who did what, so kept that what is missing or changed is found."""

from authn.audit.acts import Class
from authn.audit.anchors import Anchor, Syslog, Witness, WitnessFile, read_anchors
from authn.audit.log import Audit
from authn.audit.reading import read
from authn.audit.signing import public_key
from authn.audit.verification import Verdict, verify, verify_lines

__all__ = [
    "Anchor",
    "Audit",
    "Class",
    "Syslog",
    "Verdict",
    "Witness",
    "WitnessFile",
    "public_key",
    "read",
    "read_anchors",
    "verify",
    "verify_lines",
]
