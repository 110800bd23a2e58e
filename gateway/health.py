"""How a gateway is: why it is not ready, what its owner should know, and its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from authn.certificates import Certificates
from gateway.descriptors import Descriptors
from gateway.inventory import read_notes
from gateway.stores import Stores
from runtime.metrics import Metrics, samples


class Chore(Protocol):
    """What is done from time to time, and can fail."""

    def warnings(self) -> Mapping[str, str]:
        """What an owner should know, by name."""
        ...


class Measured(Protocol):
    def metrics(self) -> str:
        """For Prometheus."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the health pages ask of one runtime."""

    stores: Stores
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
        if (problem := self.stores.time.problem) is not None:
            found["clock"] = problem
        if (problem := self.descriptors.problem) is not None:
            found["descriptors"] = problem
        for number, note in enumerate(read_notes(self.stores.home), 1):
            found[f"store-{number}"] = f"{note.store}: {note.detail} (seen? skep stores clear)"
        for chore in self.chores:
            found.update(chore.warnings())
        return found

    def metrics(self) -> str:
        """For Prometheus: the counters, the clock, the stores, and what the chores measure."""
        time, notes = self.stores.time, read_notes(self.stores.home)
        own = samples(
            (
                "skep_clock_trusted",
                "gauge",
                "0 while the clock is earlier than times that were seen or stamped before.",
                int(time.problem is None),
            ),
            (
                "skep_clock_behind_seconds",
                "gauge",
                "By how much the clock is behind times that were stamped already.",
                round(time.behind_us / 1e6, 3),
            ),
            (
                "skep_stores_set_aside",
                "gauge",
                "Stores that were missing, shortened or set aside, and not cleared yet.",
                len(notes),
            ),
        )
        return "".join((self.counters.text(), own, *(one.metrics() for one in self.measured)))
