"""A PostgreSQL server for tests: the one that `SKEP_TEST_POSTGRES` names, or a throwaway one where it is installed.

The throwaway server listens on loopback only, keeps its data in a temporary folder and ends with the tests. PostgreSQL
refuses to run as root; it then runs as the user `postgres`, whom its packages make.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine

VARIABLE = "SKEP_TEST_POSTGRES"
START_S = 60


@contextmanager
def server() -> Iterator[str]:
    """The URL of a database that tests may empty; skips where there is no server to start."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    pytest.importorskip("psycopg", reason="psycopg, of the extra `postgres`, is not installed")
    programs = _programs()
    if programs is None:
        pytest.skip(f"no PostgreSQL server is installed, and {VARIABLE} names no database")
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="skep-postgresql-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data, port = folder / "data", _free_port()
        _run([programs / "initdb", "-D", data, "-U", "skep", "--auth=trust", "--no-sync", "-E", "UTF8"], user)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        control: list[str | Path] = [programs / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-t", str(START_S)]
        _run([*control, "-o", options, "start"], user)
        try:
            yield f"postgresql+psycopg://skep@127.0.0.1:{port}/postgres"
        finally:
            _run([programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def emptied(url: str) -> str:
    """`url`, with nothing in its database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    engine.dispose()
    return url


def _programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`; Debian keeps them off the path, by version."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def _user() -> str | None:
    """Whom the server runs as; None for whoever runs the tests."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user `postgres`")


def _run(command: list[str | Path], user: str | None) -> None:
    # What pg_ctl starts would keep a pipe open: the server writes to its log.
    subprocess.run(command, user=user, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
