"""The built-in service of Thing Models: stored, searched, composed, and made into Thing Descriptions.

Models are read by who may read entries of the directory under their id, and written by who may write those. A model
refers to others by their id or by their address here; nothing is fetched.
"""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import anyio
from pydantic import Field
from pydantic_core import from_json

from things.addresses import Address, is_twin
from things.composed_things import Wanted, check, instances
from things.errors import BadAddress, NotFound, PreconditionFailed
from things.findings import is_uri
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Input, Method, MethodService, Text, on_service
from things.service_ids import MODELS
from things.td_rules import MAX_ID_CHARS
from things.thing_model import Resolver, ThingModel
from things.times import rfc3339
from things.vocabulary import ServiceType
from twin.inputs import MAX_PAGE, Document, Page
from twin.models import ModelStore, StoredModel
from twin.search import May

_PATH = "/models/"
_ONE = anyio.CapacityLimiter(1)
"""Models are composed off the loop, one at a time."""

Pointers = Annotated[list[Text], Field(max_length=MAX_PAGE)]


class ListModels(Input):
    text: Text | None = None
    """Part of a title or id."""
    limit: Page = 100
    cursor: Text | None = None


class OneModel(Input):
    model_id: Text


class ReadModel(OneModel):
    version: Annotated[int, Field(ge=1)] | None = None
    composed: bool = False


class PutModel(OneModel):
    model: Document
    if_match: Text | None = None
    if_none_match: Text | None = None


class RemoveModel(OneModel):
    if_match: Text | None = None


class Instantiate(OneModel):
    id: Text | None = None
    placeholders: Document = Field(default_factory=dict)
    options: Pointers | None = None
    additions: Document = Field(default_factory=dict)
    agent: bool = False


class ModelsService(MethodService):
    """Thing Models: read by everyone as far as they may see, written by managers and services."""

    def __init__(self, models: ModelStore, may: May) -> None:
        self._models = models
        self._may = may

        def on_model(operation: Operation) -> Any:
            return lambda given: (operation, Address(given.model_id))

        reads, writes = on_model(Operation.READ), on_model(Operation.PUBLISH_TD)
        super().__init__(
            MODELS,
            Operation.READ,
            [
                Method(
                    name="listModels",
                    title="List Thing Models in order of their ids",
                    input=ListModels,
                    run=self._list,
                    needs=on_service(Operation.READ, MODELS),
                    safe=True,
                ),
                Method(
                    name="readModel",
                    title="Read a Thing Model, also a former one, or with everything it includes",
                    input=ReadModel,
                    run=self._read,
                    needs=reads,
                    safe=True,
                ),
                Method(
                    name="listModelVersions",
                    title="When a Thing Model was stored, changed and removed",
                    input=OneModel,
                    run=self._versions,
                    needs=reads,
                    safe=True,
                ),
                Method(name="putModel", title="Store a Thing Model", input=PutModel, run=self._put, needs=writes),
                Method(
                    name="removeModel",
                    title="Remove a Thing Model",
                    input=RemoveModel,
                    run=self._remove,
                    needs=on_model(Operation.REMOVE_TD),
                ),
                Method(
                    name="instantiate",
                    title="Make the Thing Description of a Thing of a model, and of its parts",
                    input=Instantiate,
                    run=self._instantiate,
                    needs=reads,
                    safe=True,
                ),
            ],
            type_=ServiceType.MODEL_SERVICE,
            title="Thing Models",
            description="Templates of Thing Descriptions: stored by version, composed, and made into descriptions.",
        )

    async def _list(self, given: ListModels, principal: Principal) -> JSONValue:
        part, items, last = (given.text or "").casefold(), list[JSONValue](), ""
        for model_id in self._models.ids():
            model = self._models.get(model_id)
            if model is None or model_id <= (given.cursor or "") or not self._sees(principal, model_id):
                continue
            if part in model.title.casefold() or part in model_id.casefold():
                if len(items) == given.limit:
                    return {"items": items, "cursor": last}
                items.append(_entry(model))
                last = model_id
        return {"items": items}

    async def _read(self, given: ReadModel, principal: Principal) -> JSONValue:
        model = self._known(given.model_id)
        if given.version is not None:
            found = {each.version: each for each in await self._models.versions(given.model_id)}
            if given.version not in found or found[given.version].text is None:
                raise NotFound(f"the Thing Model {given.model_id!r} has no version {given.version}")
            model = found[given.version]
        document: dict[str, Any] = from_json(model.text or b"")
        if given.composed:
            resolve = self._resolver(principal, {})

            def compose() -> dict[str, Any]:
                return ThingModel.of(document).composed(resolve).document

            document = await anyio.to_thread.run_sync(compose, limiter=_ONE)
        return {**_entry(model), "model": document}

    async def _versions(self, given: OneModel, principal: Principal) -> JSONValue:
        found = await self._models.versions(given.model_id)
        if not found:
            raise _unknown(given.model_id)
        return {"items": [{**_entry(model), "isRemoved": model.text is None} for model in found]}

    async def _put(self, given: PutModel, principal: Principal) -> JSONValue:
        model_id = given.model_id
        if is_twin(model_id) or not is_uri(model_id) or len(model_id) > MAX_ID_CHARS:
            raise BadAddress("the id of a Thing Model is a URI, and not one of a twin")
        resolve = self._resolver(principal, {model_id: given.model})

        def checked() -> ThingModel:
            model = ThingModel.of(given.model)
            check(model_id, resolve)
            return model

        model = await anyio.to_thread.run_sync(checked, limiter=_ONE)
        is_new = False

        def condition(standing: StoredModel | None) -> None:
            nonlocal is_new
            is_new = standing is None
            _check(standing, given.if_match, given.if_none_match)

        stored = await self._models.put(model_id, model, condition=condition)
        return {**_entry(stored), "isNew": is_new}

    async def _remove(self, given: RemoveModel, principal: Principal) -> JSONValue:
        if not await self._models.remove(
            given.model_id, condition=lambda standing: _check(standing, given.if_match, None)
        ):
            raise _unknown(given.model_id)
        return {}

    async def _instantiate(self, given: Instantiate, principal: Principal) -> JSONValue:
        self._known(given.model_id)
        resolve = self._resolver(principal, {})
        wanted = Wanted(
            thing_id=given.id,
            placeholders=given.placeholders,
            options=given.options,
            additions=given.additions,
            agent=given.agent,
        )

        def made() -> list[JSONValue]:
            return [td.document for td in instances(given.model_id, resolve, wanted)]

        whole, *parts = await anyio.to_thread.run_sync(made, limiter=_ONE)
        return {"td": whole, "parts": parts}

    def _known(self, model_id: str) -> StoredModel:
        model = self._models.get(model_id)
        if model is None:
            raise _unknown(model_id)
        return model

    def _sees(self, principal: Principal, model_id: str) -> bool:
        return self._may(principal, Operation.READ, Address(model_id))

    def _resolver(self, principal: Principal, besides: Mapping[str, Mapping[str, Any]]) -> Resolver:
        """Models as the caller may see them now, for another thread; others are not known."""
        seen = {
            model_id: model.text
            for model_id in self._models.ids()
            if (model := self._models.get(model_id)) is not None and self._sees(principal, model_id)
        }

        def resolve(address: str) -> Mapping[str, Any] | None:
            for model_id in (address, _id_in(address)):
                if model_id in besides:
                    return besides[model_id]
                if (text := seen.get(model_id)) is not None:
                    found: dict[str, Any] = from_json(text)
                    return found
            return None

        return resolve


def _id_in(address: str) -> str:
    """The id in an address of ours, of whatever host; nothing in others."""
    try:
        path = urlsplit(address).path
    except ValueError:
        return ""
    return unquote(path.partition(_PATH)[2])


def _check(standing: StoredModel | None, match: str | None, none_match: str | None) -> None:
    tag = None if standing is None else standing.etag
    if match is not None and (tag is None or match.strip() not in ("*", tag)):
        raise PreconditionFailed("the Thing Model is not as it was")
    if none_match is not None and tag is not None and none_match.strip() in ("*", tag):
        raise PreconditionFailed("the Thing Model is there already")


def _unknown(model_id: str) -> NotFound:
    return NotFound(f"no Thing Model {model_id[:200]!r}")


def _entry(model: StoredModel) -> dict[str, JSONValue]:
    return {
        "modelID": model.model_id,
        "title": model.title,
        "version": model.version,
        "published": rfc3339(model.published),
        "etag": model.etag,
    }
