"""Directory entries and TD versions as rows of the twin's database: read, written, made values again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, bindparam, delete, func, insert, select

from things.addresses import TwinID, is_twin
from things.messages import JSONValue
from things.records import Entry
from things.td import ThingDescription
from things.vocabulary import Term
from twin.database import Database, Prepared
from twin.statements import upsert
from twin.tables import EntryRow, TDVersionRow, table

_ENTRIES = table(EntryRow)
_VERSIONS = table(TDVersionRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class TDVersion:
    """A TD as it was published; `td` is None where the Thing was removed."""

    thing_id: str
    version: int
    published: int
    td: ThingDescription | None

    @property
    def entry(self) -> Entry | None:
        """The directory's entry as it was then, as far as a version tells; None where the Thing was removed."""
        if self.td is None:
            return None
        return Entry(
            thing_id=self.thing_id,
            td=self.td,
            agent=TwinID.parse(self.thing_id).account if is_twin(self.thing_id) else None,
            version=self.version,
            created=self.published,
            modified=self.published,
        )


NOT_KNOWN_THEN = frozenset({Term.ONLINE.value, Term.LAST_SEEN.value})
"""Members of a TD that say whether its agent is here now, and nothing about then."""


class EntryRows:
    """The statements of a directory's writes, compiled once for the database's dialect; for the writer thread."""

    def __init__(self, database: Database) -> None:
        engine = database.engine
        whole = select(*_ENTRIES.c, _VERSIONS.c.title, _VERSIONS.c.types, _VERSIONS.c.td).where(
            _VERSIONS.c.thing_id == _ENTRIES.c.thing_id, _VERSIONS.c.version == _ENTRIES.c.version
        )
        wanted: Any = bindparam("thing_id")
        self._all = Prepared(whole.order_by(_ENTRIES.c.thing_id), engine)
        self._one = Prepared(whole.where(_ENTRIES.c.thing_id == wanted), engine)
        self._last = Prepared(select(func.max(_VERSIONS.c.version)).where(_VERSIONS.c.thing_id == wanted), engine)
        self._add = Prepared(insert(_VERSIONS), engine)
        self._put = upsert(_ENTRIES, engine)
        self._delete = Prepared(delete(_ENTRIES).where(_ENTRIES.c.thing_id == wanted), engine)

    def all(self, connection: Connection) -> list[Entry]:
        return [_entry(_Stored._make(row)) for row in self._all.rows(connection)]

    def one(self, connection: Connection, thing_id: str) -> Entry | None:
        row = self._one.row(connection, thing_id=thing_id)
        return None if row is None else _entry(_Stored._make(row))

    def add_version(self, connection: Connection, thing_id: str, now: int, td: ThingDescription) -> int:
        """The number of the version that was added."""
        row = self._last.row(connection, thing_id=thing_id)
        version = ((row and row[0]) or 0) + 1
        self._add.run(
            connection,
            thing_id=thing_id,
            version=version,
            published=now,
            title=td.title,
            types=to_json(td.types).decode(),
            td=td.text.decode(),
        )
        return int(version)

    def put(self, connection: Connection, entry: Entry) -> None:
        self._put.run(
            connection,
            thing_id=entry.thing_id,
            agent=entry.agent,
            version=entry.version,
            created=entry.created,
            modified=entry.modified,
            expires=entry.expires,
            overlay=to_json(entry.overlay).decode() if entry.overlay else None,
        )

    def remove(self, connection: Connection, entry: Entry, now: int) -> None:
        self._delete.run(connection, thing_id=entry.thing_id)
        self._add.run(
            connection,
            thing_id=entry.thing_id,
            version=entry.version + 1,
            published=now,
            title=None,
            types=None,
            td=None,
        )


class _Stored(NamedTuple):
    """An entry with its TD as they are stored."""

    thing_id: str
    agent: str | None
    version: int
    created: int
    modified: int
    expires: int | None
    overlay: str | None
    title: str
    types: str
    td: str


def complete(entry: Entry) -> Entry:
    """With its tag."""
    return replace(entry, etag=_etag(entry.version, entry.td, entry.overlay))


def _etag(version: int, td: ThingDescription, overlay: Mapping[str, JSONValue]) -> str:
    """What changes with anything a reader sees."""
    digest = blake2b(td.text, digest_size=12)
    digest.update(to_json(overlay))
    return f'"{version}-{digest.hexdigest()}"'


def _entry(row: _Stored) -> Entry:
    # A start makes one for each Thing there is: with its tag at once.
    td, overlay = _td(row), {} if row.overlay is None else from_json(row.overlay)
    return Entry(
        thing_id=row.thing_id,
        td=td,
        agent=row.agent,
        version=row.version,
        created=row.created,
        modified=row.modified,
        expires=row.expires,
        overlay=overlay,
        etag=_etag(row.version, td, overlay),
    )


def version_of(row: Any) -> TDVersion:
    return TDVersion(
        thing_id=row.thing_id,
        version=row.version,
        published=row.published,
        td=None if row.td is None else _td(row),
    )


def _td(row: Any) -> ThingDescription:
    # It was checked before it was stored; reading it again waits until somebody needs more than title and type.
    return ThingDescription(row.td.encode(), {"title": row.title, "@type": from_json(row.types)})
