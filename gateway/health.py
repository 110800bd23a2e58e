"""How a gateway is: why it is not ready, what its owner should know, and its metrics."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import Metric

from authn.certificates import Certificates
from gateway.descriptors import Descriptors
from gateway.folder_figures import FolderFigures
from gateway.stores import Stores
from runtime.metrics import Metrics, gauge, histogram, labelled


class Chore(Protocol):
    """What is done from time to time, and can fail."""

    def warnings(self) -> Mapping[str, str]:
        """What an owner should know, by name."""
        ...


class Measured(Protocol):
    def metrics(self) -> Iterable[Metric]:
        """For Prometheus."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the health pages ask of one runtime."""

    stores: Stores
    figures: FolderFigures
    certificates: Certificates
    descriptors: Descriptors
    counters: Metrics
    chores: Sequence[Chore]
    measured: Sequence[Measured]

    def not_ready(self) -> Mapping[str, str]:
        """The reasons why it is not, by name."""
        twin, found = self.stores.twin, {}
        if twin.failure is not None:
            found["storage"] = twin.failure.detail
        if twin.history.is_full:
            found["space"] = "no space left for data"
        if self.stores.authorizer.problem is not None:
            found["rights"] = self.stores.authorizer.problem
        return found

    def warnings(self) -> Mapping[str, str]:
        """What an owner should know, by name."""
        found = {f"certificate-{number}": text for number, text in enumerate(self.certificates.warnings(), 1)}
        if (problem := self.stores.authenticator.audit.problem) is not None:
            found["audit"] = problem
        if (problem := self.stores.authenticator.problem) is not None:
            found["accounts"] = problem
        if (problem := self.stores.time.problem) is not None:
            found["clock"] = problem
        if (problem := self.descriptors.problem) is not None:
            found["descriptors"] = problem
        if (problem := self.figures.problem) is not None:
            found["disk"] = problem
        for number, note in enumerate(self.figures.last.notes, 1):
            found[f"store-{number}"] = f"{note.store}: {note.detail} (seen? skep stores clear)"
        for chore in self.chores:
            found.update(chore.warnings())
        return found

    def metrics(self) -> Iterator[Metric]:
        """For Prometheus: the counters, and what ends, fills up or falls behind."""
        yield from self.counters.families()
        yield from self._of_clock()
        yield from self._of_stores()
        yield labelled(
            "skep_certificate_ends_timestamp_seconds",
            "When certificates end, in seconds of the epoch.",
            ("certificate",),
            {(what,): end.timestamp() for what, end in self.certificates.ends().items()},
        )
        yield gauge("skep_ready", "1 if the runtime is ready, as /readyz says.", not self.not_ready())
        for one in self.measured:
            yield from one.metrics()

    def _of_clock(self) -> Iterator[Metric]:
        time = self.stores.time
        yield gauge(
            "skep_clock_trusted",
            "0 while the clock is earlier than times that were seen or stamped before.",
            time.problem is None,
        )
        yield gauge(
            "skep_clock_behind_seconds",
            "By how much the clock is behind times that were stamped already.",
            round(time.behind_us / 1e6, 3),
        )

    def _of_stores(self) -> Iterator[Metric]:
        twin, figures = self.stores.twin, self.figures.last
        writers = {("history",): twin.history.writer, ("twin",): twin.database.writer}
        yield histogram(
            "skep_commit_seconds",
            "How long groups of writes took to be written and synced.",
            ("store",),
            {store: writer.commit_s for store, writer in writers.items()},
        )
        yield labelled(
            "skep_commit_waiting",
            "Writes that are submitted and not committed.",
            ("store",),
            {store: writer.waiting for store, writer in writers.items()},
        )
        yield labelled(
            "skep_store_refuses",
            "1 while a store takes no writes: it failed, is full, or is short of what the machine has to give.",
            ("store",),
            {store: writer.failure is not None or writer.is_full for store, writer in writers.items()},
        )
        yield gauge(
            "skep_stores_set_aside",
            "Stores that were missing, shortened or set aside, and not cleared yet.",
            len(figures.notes),
        )
        yield labelled(
            "skep_file_bytes",
            "Bytes of files in the data folder, the lake apart.",
            ("what",),
            {("history",): figures.history_bytes, ("databases",): figures.database_bytes},
        )
        if figures.free_bytes is not None:
            yield gauge("skep_disk_free_bytes", "Free on the disk of the data folder.", figures.free_bytes)
