"""Policy sets as files: `{home}/policies/{id}.json` or `.toml`, with earlier versions below `earlier/`.

One broken, empty or lost file makes the whole folder unusable: the authorizer then denies, and says which file it is.
"""

import tomllib
from pathlib import Path

from authz.policy.sets import SetDocument, plain, set_document
from things.errors import Invalid, NotFound, SkepError
from things.jsontext import decode_unique, encode
from things.whole_files import sync, write_whole

MAX_BYTES = 256 << 10
MAX_EARLIER = 20


class PolicyFolder:
    """Reads and writes the files; what is active is the authorizer's to say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, expected: frozenset[str]) -> dict[str, SetDocument]:
        """All sets, each good in itself. Raises Invalid that names the file, also if an expected set is gone."""
        documents: dict[str, SetDocument] = {}
        for path in self._paths():
            document = self._read(path)
            if document.id != path.stem:
                raise Invalid(f"{path.name}: the set in it is called {document.id!r}; name the file after it")
            if document.id in documents:
                raise Invalid(f"{path.name}: the set {document.id!r} is there twice")
            documents[document.id] = document
        lost = sorted(expected - set(documents))
        if lost:
            raise Invalid(f"policy set {lost[0]!r} is active and its file is gone; restore it, or remove the set")
        return documents

    def readable(self) -> dict[str, SetDocument]:
        """The sets whose files are good in themselves, to repair the others from."""
        found = {}
        for path in self._paths():
            try:
                document = self._read(path)
            except SkepError:
                continue
            if document.id == path.stem:
                found[document.id] = document
        return found

    def write(self, document: SetDocument) -> None:
        """Make `document` the file of its set; the one before is kept aside."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{document.id}.json"
        self._keep(document.id)
        write_whole(path, encode(plain(document)) + b"\n")
        (self._folder / f"{document.id}.toml").unlink(missing_ok=True)
        sync(self._folder)

    def remove(self, set_id: str) -> None:
        self._keep(set_id)
        for suffix in ("json", "toml"):
            (self._folder / f"{set_id}.{suffix}").unlink(missing_ok=True)
        if self._folder.exists():
            sync(self._folder)

    def earlier(self, set_id: str, version: int) -> SetDocument:
        """A version that was active before. Raises NotFound."""
        path = self._folder / "earlier" / f"{set_id}.{version}.json"
        if not path.is_file():
            raise NotFound(f"no version {version} of policy set {set_id[:64]!r}")
        return self._read(path)

    def versions(self, set_id: str) -> list[int]:
        """Earlier versions that are kept, oldest first."""
        found = (path.name.split(".")[1] for path in (self._folder / "earlier").glob(f"{set_id}.*.json"))
        return sorted(int(version) for version in found if version.isdecimal())

    def _keep(self, set_id: str) -> None:
        for path in self._paths():
            if path.stem != set_id:
                continue
            try:
                standing = self._read(path)
            except SkepError:
                continue  # a broken file is being replaced; there is nothing in it to go back to
            aside = self._folder / "earlier"
            aside.mkdir(mode=0o700, exist_ok=True)
            write_whole(aside / f"{set_id}.{standing.version}.json", encode(plain(standing)) + b"\n")
            for version in self.versions(set_id)[:-MAX_EARLIER]:
                (aside / f"{set_id}.{version}.json").unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        if not self._folder.exists():
            return []
        return sorted(path for path in self._folder.iterdir() if path.suffix in {".json", ".toml"})

    def _read(self, path: Path) -> SetDocument:
        try:
            content = path.read_bytes()
            if len(content) > MAX_BYTES:
                raise Invalid(f"larger than {MAX_BYTES} bytes")
            if not content.strip():
                raise Invalid("the file is empty")
            value = tomllib.loads(content.decode()) if path.suffix == ".toml" else decode_unique(content)
            return set_document(value)
        except (OSError, ValueError, SkepError) as error:
            detail = error.detail if isinstance(error, SkepError) else str(error)
            raise Invalid(f"{path.name}: {detail}") from error
