"""The header fields of one request."""

from collections.abc import Iterator, Sequence


class Fields:
    """Header fields by lower-case name, decoded when they are asked for: most are not. Repeated ones are joined."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        self._raw = dict(raw)
        if len(self._raw) != len(raw):
            values: dict[bytes, list[bytes]] = {}
            for name, value in raw:
                values.setdefault(name, []).append(value)
            self._raw = {name: b", ".join(found) for name, found in values.items()}

    def get(self, name: str, default: str | None = None) -> str | None:
        value = self._raw.get(name.encode("latin-1"))
        return default if value is None else value.decode("latin-1")

    def __contains__(self, name: str) -> bool:
        return name.encode("latin-1") in self._raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)
