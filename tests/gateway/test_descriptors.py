"""How descriptors are shared out where the system allows few."""

import pytest

from gateway.descriptors import MAX_HTTP, RESERVED, shared_out


@pytest.mark.parametrize("limit", [256, 1_024, 4_096, 10_000, 20_000, 2**31])
@pytest.mark.parametrize("wanted", [1, 100, 10_000])
def test_connections_leave_descriptors_for_the_stores(limit: int, wanted: int) -> None:
    found = shared_out(limit, wanted)

    assert found.mqtt + found.http <= limit - RESERVED
    assert 1 <= found.mqtt <= wanted
    assert 1 <= found.http <= MAX_HTTP
    assert (found.problem is None) == (found.mqtt == wanted)


def test_a_limit_that_carries_less_than_is_configured_is_named() -> None:
    assert shared_out(20_000, 10_000).problem is None
    assert "1024 open files: 624 MQTT and 208 HTTP" in (shared_out(1_024, 10_000).problem or "")
