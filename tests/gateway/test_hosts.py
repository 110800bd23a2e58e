"""What the gateway finds out about its own names, and how it goes on when it cannot."""

import socket
import threading

import anyio
import pytest

from gateway import hosts as module
from gateway.hosts import NameFinder, full_name, host_names
from things.hosts import Names

pytestmark = pytest.mark.anyio


def named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)


@pytest.mark.parametrize(
    ("given", "full", "found"),
    [
        ("Gw", None, ("gw", "gw.local")),
        ("gw.site.example", None, ("gw", "gw.local", "gw.site.example")),
        ("gw", "gw.site.example", ("gw", "gw.local", "gw.site.example")),
        ("gw", "evil.example", ("gw", "gw.local")),
        ("localhost", None, ("gateway", "gateway.local")),
        ("", None, ("gateway", "gateway.local")),
        ("häuschen", None, ("gateway", "gateway.local")),
    ],
)
def test_host_names_are_short_local_and_full(
    monkeypatch: pytest.MonkeyPatch, given: str, full: str | None, found: tuple[str, ...]
) -> None:
    named(monkeypatch, given)

    assert host_names(full) == found


@pytest.mark.parametrize(
    ("answer", "found"), [("gw.site.example", "gw.site.example"), ("evil.example", None), ("gw", None), ("", None)]
)
def test_a_resolver_is_believed_only_about_the_domain(
    monkeypatch: pytest.MonkeyPatch, answer: str, found: str | None
) -> None:
    named(monkeypatch, "gw")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, answer, ("192.0.2.1", 0))])

    assert full_name() == found


async def test_a_resolver_that_does_not_answer_does_not_keep_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESOLVER_S", 0.05)
    over = threading.Event()
    monkeypatch.setattr(module, "full_name", over.wait)

    with anyio.fail_after(30):
        found = await NameFinder(("gw.example",)).find()

    over.set()
    assert found.configured == ("gw.example",)


async def test_a_change_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [("10.9.9.1",), ("10.9.9.1",), ("10.9.9.2",)]
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(module, "interface_addresses", lambda: looks.pop(0) if len(looks) > 1 else looks[0])
    finder, told = NameFinder(), []

    async def changed(names: Names) -> None:
        told.append(names.addresses)
        scope.cancel()

    with anyio.fail_after(30), anyio.CancelScope() as scope:
        await finder.watch(await finder.look(), changed)

    assert told == [("10.9.9.2",)]
