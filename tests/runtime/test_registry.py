"""Built-in services by their thing id."""

from pathlib import Path

import pytest

from runtime.registry import Services
from tests.runtime.harness import house
from things.service_ids import LAKE, REQUESTS

pytestmark = pytest.mark.anyio


async def test_service_is_found_by_its_id_and_no_other_by_it(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        service = h.runtime.services.get(REQUESTS)
        assert service is not None

        services = Services()
        assert services.get(REQUESTS) is None
        services.add(service)

        assert services.get(REQUESTS) is service
        assert services.get(LAKE) is None
        assert list(services) == [service]
