"""Thing Models by id: the current ones in memory as text, every version in the twin's database."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from things.callbacks import ignore
from things.errors import TooMany
from things.jsontext import encode
from things.thing_model import ThingModel
from twin.database import Database
from twin.tables import ModelRow, table

MAX_MODELS = 2_000
MAX_TOTAL_BYTES = 33_554_432
"""Of the current models: they are held in memory."""

_MODELS = table(ModelRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """One version of a model; `text` is None where it was removed. `published` is µs UTC."""

    model_id: str
    version: int
    published: int
    title: str
    text: bytes | None

    @property
    def etag(self) -> str:
        return f'"{self.version}"'


Condition = Callable[[StoredModel | None], None]
"""Asked with the standing model, in the transaction that would change it; raises SkepError to prevent that."""


class ModelStore:
    """The Thing Models of one gateway; made by `ModelStore.load`."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock
        self._current: dict[str, StoredModel] = {}

    @classmethod
    async def load(cls, database: Database, clock: Callable[[], int]) -> "ModelStore":
        """All current models of a database."""
        models = cls(database, clock)

        def found(connection: Connection) -> list[StoredModel]:
            newest = (
                select(_MODELS.c.model_id, func.max(_MODELS.c.version).label("version"))
                .group_by(_MODELS.c.model_id)
                .subquery()
            )
            wanted = select(*_MODELS.c).join(
                newest, (newest.c.model_id == _MODELS.c.model_id) & (newest.c.version == _MODELS.c.version)
            )
            return [_stored(row) for row in connection.execute(wanted.where(_MODELS.c.model.is_not(None)))]

        models._current = {model.model_id: model for model in await database.read(found)}
        return models

    def get(self, model_id: str) -> StoredModel | None:
        return self._current.get(model_id)

    def ids(self) -> Sequence[str]:
        """All ids, sorted."""
        return sorted(self._current)

    async def versions(self, model_id: str) -> Sequence[StoredModel]:
        """Every version of a model, oldest first, removals among them."""

        def found(connection: Connection) -> list[StoredModel]:
            wanted = select(*_MODELS.c).where(_MODELS.c.model_id == model_id).order_by(_MODELS.c.version)
            return [_stored(row) for row in connection.execute(wanted)]

        return await self._database.read(found)

    async def put(self, model_id: str, model: ThingModel, *, condition: Condition = ignore) -> StoredModel:
        """Store a new version; the same text again changes nothing. Raises TooMany, and what `condition` raises."""
        text = encode(model.document)

        def written(connection: Connection) -> StoredModel | None:
            # The writer's own view: two writers of one model come one after the other.
            standing, last = self._standing(connection, model_id)
            condition(standing)
            if standing is not None and standing.text == text:
                return standing
            self._check_room(standing, len(text))
            stored = StoredModel(
                model_id=model_id,
                version=last + 1,
                published=self._clock(),
                title=str(model.document.get("title", "")),
                text=text,
            )
            self._insert(connection, stored)
            return stored

        stored = await self._known(self._database.submit(written, refuses_first=True))
        assert stored is not None
        return stored

    async def remove(self, model_id: str, *, condition: Condition = ignore) -> bool:
        """Remove a model, its versions stay; False if there was none. Raises what `condition` raises."""

        def written(connection: Connection) -> StoredModel | None:
            standing, last = self._standing(connection, model_id)
            condition(standing)
            if standing is None:
                return None
            gone = StoredModel(model_id=model_id, version=last + 1, published=self._clock(), title="", text=None)
            self._insert(connection, gone)
            return gone

        return await self._known(self._database.submit(written, frees=True, refuses_first=True)) is not None

    async def _known(self, future: "asyncio.Future[StoredModel | None]") -> StoredModel | None:
        future.add_done_callback(self._apply)
        # Whoever waits may be cancelled; what was committed is known here all the same.
        return await asyncio.shield(future)

    def _apply(self, done: "asyncio.Future[StoredModel | None]") -> None:
        if done.cancelled() or done.exception() is not None or (stored := done.result()) is None:
            return
        if stored.text is None:
            self._current.pop(stored.model_id, None)
        else:
            self._current[stored.model_id] = stored

    def _standing(self, connection: Connection, model_id: str) -> tuple[StoredModel | None, int]:
        """The model as it stands, and the number of its last version."""
        wanted = select(*_MODELS.c).where(_MODELS.c.model_id == model_id).order_by(_MODELS.c.version.desc()).limit(1)
        row = connection.execute(wanted).first()
        if row is None:
            return None, 0
        stored = _stored(row)
        return (None if stored.text is None else stored), stored.version

    def _check_room(self, standing: StoredModel | None, size: int) -> None:
        # Read in the writer's thread: what is committed just now may be missing, which a bound can bear.
        current = list(self._current.values())
        if standing is None and len(current) >= MAX_MODELS:
            raise TooMany("a gateway", MAX_MODELS, "Thing Models")
        if sum(len(model.text or b"") for model in current) + size > MAX_TOTAL_BYTES:
            raise TooMany("a gateway", MAX_TOTAL_BYTES, "bytes of Thing Models")

    def _insert(self, connection: Connection, stored: StoredModel) -> None:
        connection.execute(
            _MODELS.insert().values(
                model_id=stored.model_id,
                version=stored.version,
                published=stored.published,
                title=stored.title,
                model=None if stored.text is None else stored.text.decode(),
            )
        )


def _stored(row: object) -> StoredModel:
    model_id, version, published, title, model = tuple(row)  # type: ignore[arg-type,var-annotated]
    return StoredModel(
        model_id=model_id,
        version=version,
        published=published,
        title=title or "",
        text=None if model is None else model.encode(),
    )
