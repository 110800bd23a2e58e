"""The built-in services by thing id: Things of the runtime itself, called inside the process."""

from collections.abc import Iterable, Iterator

from runtime.ports import Service


class Services:
    """What can be called without an agent."""

    def __init__(self, services: Iterable[Service] = ()) -> None:
        self._by_id = {service.thing_id: service for service in services}

    def add(self, service: Service) -> None:
        """Hang on one more; done before bindings start."""
        self._by_id[service.thing_id] = service

    def get(self, thing_id: str) -> Service | None:
        """The service with this id."""
        return self._by_id.get(thing_id)

    def __iter__(self) -> Iterator[Service]:
        return iter(self._by_id.values())
