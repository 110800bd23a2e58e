"""Parts of the lake as Arrow, every byte compared with the manifest's checksums before it counts."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads

from things.blocks import PartFile
from things.errors import StorageDamaged
from things.lake import Part
from twin.lake.places import Place

READERS = 8
"""Footers that are read at a time: those of an object store are a request each."""

_FORMAT = pads.ParquetFileFormat()


def files_of(place: Place, parts: Sequence[Part]) -> list[PartFile]:
    """The parts as files; each is opened when it is read."""
    return [PartFile(part, partial(place.content, part.path)) for part in parts]


def dataset_of(files: Sequence[PartFile], schema: pa.Schema) -> pads.Dataset:
    """Files of one table, with their footers read. Raises OSError and ArrowException for one that cannot be.

    A footer that fails while a scan begins can stop the process for good: Arrow's thread holds the scan's lock and
    waits for the interpreter's, which whoever begins the scan holds while it waits for the scan's."""
    fragments = [_FORMAT.make_fragment(pa.PythonFile(file, mode="r")) for file in files]
    with ThreadPoolExecutor(READERS, "lake-footers") as reading:
        for _ in reading.map(pads.ParquetFileFragment.ensure_complete_metadata, fragments):
            pass
    return pads.FileSystemDataset(fragments, schema, _FORMAT)


@contextmanager
def naming(files: Sequence[PartFile], where: str) -> Iterator[None]:
    """Raises StorageDamaged for whatever goes wrong with files that are read in the block, with the name of the one."""
    try:
        yield
    except (OSError, pa.ArrowException, duckdb.IOException, duckdb.InvalidInputException) as error:
        fault = next((file.fault for file in files if file.fault is not None), None)
        raise StorageDamaged(f"{where}: {fault or error}") from error
