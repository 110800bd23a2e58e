"""Which hosts are this machine only."""

import pytest

from things.network import is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("::ffff:127.0.0.1", True),
        ("127.8.8.8", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.test", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
