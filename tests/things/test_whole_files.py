"""Files written whole: the old content or the new, and no draft left behind."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from things.whole_files import copy_sqlite, write_whole, written_whole


def test_content_is_replaced_and_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o644)

    write_whole(path, b"new")

    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_mode_counts_whatever_the_mask_says(tmp_path: Path) -> None:
    write_whole(tmp_path / "java", b"#!/bin/sh", 0o755)

    assert stat.S_IMODE((tmp_path / "java").stat().st_mode) == 0o755


def test_failure_while_writing_leaves_the_old_content_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"old")

    def fail() -> None:
        with written_whole(path) as file:
            file.write(b"ne")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        fail()

    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"table": b"old"}


def test_of_two_who_create_a_file_one_is_refused_and_the_first_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "commit"
    with written_whole(path, replace=False) as file:
        file.write(b"first")

    with pytest.raises(FileExistsError), written_whole(path, replace=False) as file:
        file.write(b"second")

    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"commit": b"first"}


def test_name_is_free_until_the_content_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "table"

    with written_whole(path) as file:
        file.write(b"content")
        assert not path.exists()

    assert path.read_bytes() == b"content"


def test_draft_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / ".key.7.tmp").symlink_to(tmp_path / "victim")

    with pytest.raises(OSError, match="symbolic"):
        write_whole(tmp_path / "key", b"secret")

    assert (tmp_path / "victim").read_bytes() == b"kept"


def test_copy_of_a_database_in_use_holds_what_was_committed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE t (n)")
        writer.execute("INSERT INTO t VALUES (1)")
        writer.commit()
        writer.execute("INSERT INTO t VALUES (2)")

        copy_sqlite(tmp_path / "a.db", tmp_path / "b.db")

    with closing(sqlite3.connect(tmp_path / "b.db")) as copy:
        assert copy.execute("SELECT n FROM t").fetchall() == [(1,)]
    assert stat.S_IMODE((tmp_path / "b.db").stat().st_mode) == 0o600
