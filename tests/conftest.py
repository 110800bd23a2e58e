"""Fixtures every test may use, and how long a test may take."""

import gc
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from authn import passwords
from tests import postgresql, s3
from tests.bindings.http import browser

PASSWORD_COST = {"PASSES": passwords.PASSES, "MEMORY_KIB": passwords.MEMORY_KIB}
SLOW_S = {"spark": 600, "node": 300, "browser": 300, "trial": 3_600}
"""Seconds for tests that start something large; all others have the `timeout` in pyproject.toml."""
LARGE = ("spark", "node", "browser")
LONG = ("trials", "journeys", "skep")
"""Folders of tests that start programs, and wait for them."""

TRIALS = Path(__file__).parent / "trials"

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
"""Free space without which temporary folders stay on the disk."""

# A runtime syncs its new stores a hundred times before it is ready, and tests start two thousand of them. What a kill
# leaves behind is the same in a file system in memory; the benchmarks, and `PYTEST_DEBUG_TEMPROOT`, use the disk.
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# How long an example takes, or its making, says how busy the machine is and nothing of what is tested.
settings.register_profile("skep", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("skep")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _mark_the_long(items)
    _limit(items)
    _put_the_longest_first(items)


def _mark_the_long(items: list[pytest.Item]) -> None:
    """What takes half of the processor time of all tests: whoever changes a line has an answer without it."""
    for item in items:
        if any(item.get_closest_marker(mark) for mark in LARGE) or TRIALS in item.path.parents:
            item.add_marker(pytest.mark.long)


def _limit(items: list[pytest.Item]) -> None:
    for item in items:
        allowed = [seconds for mark, seconds in SLOW_S.items() if item.get_closest_marker(mark)]
        if allowed and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(max(allowed)))


def _put_the_longest_first(items: list[pytest.Item]) -> None:
    """Files that start something large or programs, then those with many tests: with several processes, none is left
    alone at the end with a long one."""
    counts = Counter(item.path for item in items)
    large = {item.path for item in items if any(item.get_closest_marker(mark) for mark in LARGE)}

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        is_long = item.path.relative_to(Path(__file__).parent).parts[0] in LONG
        return 0 if item.path in large else 1 if is_long else 2, -counts[item.path], str(item.path)

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    # What collection made stays; the collector would look through all of it again and again.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL database, one for each test process; skips where there is none."""
    with postgresql.server() as url:
        yield url


@pytest.fixture(autouse=True, scope="session")
def s3_environment() -> Iterator[None]:
    """Where an S3 server is found, if a test asks for one."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in s3.environment().items():
            patched.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def s3_server(s3_environment: None) -> Iterator[str]:
    """The URL of a folder of an S3 server, one for each test process; skips where there is none."""
    with s3.server() as url:
        yield url


@pytest.fixture
def s3_folder(s3_server: str) -> str:
    """The URL of a new folder of objects."""
    return f"{s3_server}/{uuid4().hex}"


@pytest.fixture(autouse=True, scope="session")
def cheap_passwords() -> Iterator[None]:
    """Hashing that costs next to nothing, in the tests' own processes: a test makes five accounts before it begins."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passwords, "PASSES", 1)
        patched.setattr(passwords, "MEMORY_KIB", 8)
        yield


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the debugging protocol of a browser is spoken; one process for each test process."""
    with browser.chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture(autouse=True, scope="session")
def short_lived_java() -> Iterator[None]:
    """Virtual machines of Java without their optimizing compiler: they end before it has earned back half of the
    processor time it takes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", prepend=" ")
        yield


@pytest.fixture
def costly_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing as the product does it, for tests of what it costs."""
    for name, value in PASSWORD_COST.items():
        monkeypatch.setattr(passwords, name, value)


@pytest.fixture
def anyio_backend() -> str:
    """amqtt and uvicorn are asyncio servers, so that is the loop tests run on."""
    return "asyncio"
