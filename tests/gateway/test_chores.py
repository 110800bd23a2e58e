"""What a gateway does from time to time: what fails is said and tried again, and ends nothing."""

import errno
from pathlib import Path

import anyio
import httpx2
import pytest

from gateway import chores
from tests.pairs import shown_serial
from tests.support import skep

pytestmark = pytest.mark.anyio


async def test_a_certificate_that_cannot_be_renewed_on_a_full_disk_is_renewed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chores, "EVERY_S", 0.02)
    async with skep(tmp_path, tls=True) as runtime:
        certificates, port = runtime.running.certificates, int(runtime.https.rpartition(":")[2])
        former, make = await shown_serial(port), certificates._make_server
        tries = 0

        def fails_twice() -> None:
            nonlocal tries
            tries += 1
            if tries <= 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            make()

        monkeypatch.setattr(certificates, "_make_server", fails_twice)
        certificates._names = (*certificates._names, "gateway.lan")
        with anyio.fail_after(20):
            while await shown_serial(port) == former:
                pass
        async with httpx2.AsyncClient(base_url=runtime.http) as anybody:
            assert (await anybody.get("/livez")).status_code == 200

    assert tries == 3
    put_off = [record for record in caplog.records if record.message == "housekeeping put off"]
    assert ["No space left" in str(vars(record)["detail"]) for record in put_off] == [True, True]
