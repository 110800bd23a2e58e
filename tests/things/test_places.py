"""What the gateway is called, and what follows from it for callers, pages and certificates."""

import pytest

from things.errors import ConfigInvalid
from things.hosts import Names, checked_names, checked_public_url, normalized, split_authority
from things.places import Listener, Place, Places, Urls

NAMES = Names(hosts=("gw", "gw.local"), addresses=("10.9.9.1", "192.168.7.7", "fd42::1"))


def wide(names: Names = NAMES) -> Places:
    """A gateway that listens on the network by TLS and on loopback without."""
    places = Places(names)
    places.listens(Listener("http", "127.0.0.1", 8080), Listener("https", "0.0.0.0", 5443))
    places.listens(Listener("mqtt", "127.0.0.1", 1883), Listener("mqtts", "0.0.0.0", 8883))
    return places


def at(places: Places, host: str | None, local: str | None = "10.9.9.1", scheme: str = "https") -> Urls:
    return places.urls(places.place(scheme, host, local))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GW.Local.", "gw.local"),
        ("10.9.9.1", "10.9.9.1"),
        ("[FD42:0::1]", "fd42::1"),
        ("::ffff:10.9.9.1", "10.9.9.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("a_b.example", "a_b.example"),
        ("", None),
        ("*.example", None),
        ("gw/x", None),
        ("-gw", None),
        ("gw..local", None),
        ("a" * 64, None),
        ("gw example", None),
        ("gw@evil", None),
    ],
)
def test_hosts_are_compared_in_one_spelling(text: str, found: str | None) -> None:
    assert normalized(text) == found


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("gw.local:5443", ("gw.local", 5443)),
        ("gw.local", ("gw.local", 443)),
        ("gw.local:", ("gw.local", 443)),
        ("[fd42::1]:5443", ("fd42::1", 5443)),
        ("[fd42::1]", ("fd42::1", 443)),
        ("fd42::1", None),
        ("gw:0", None),
        ("gw:70000", None),
        ("gw:x", None),
        ("gw:1:2", None),
        ("", None),
        ("evil@gw", None),
    ],
)
def test_host_fields_are_split_or_refused(field: str, found: tuple[str, int] | None) -> None:
    assert split_authority(field, "https") == found


@pytest.mark.parametrize("name", ["https://gw", "gw:8443", "*.example", "0.0.0.0", "", "a b"])
def test_a_configured_name_is_a_host_name_or_an_address(name: str) -> None:
    with pytest.raises(ConfigInvalid):
        checked_names([name])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://Home.Example/", "https://home.example"),
        ("https://home.example:443/skep/", "https://home.example/skep"),
        ("http://[fd42::1]:81", "http://[fd42::1]:81"),
        ("ftp://home.example", None),
        ("home.example", None),
        ("https://u@home.example", None),
        ("https://home.example/?a", None),
        ("https://home.example:x", None),
    ],
)
def test_a_public_address_is_an_http_url(text: str, found: str | None) -> None:
    if found is None:
        with pytest.raises(ConfigInvalid):
            checked_public_url(text)
    else:
        assert checked_public_url(text) == found


def test_a_certificate_names_every_address_that_is_listened_on() -> None:
    names = Names(hosts=("gw",), addresses=("10.9.9.1", "fd42::1"), configured=("gw.example",))

    assert set(names.certified(["127.0.0.1"])) == {"localhost", "127.0.0.1", "::1", "gw", "gw.example"}
    assert "10.9.9.1" in names.certified(["0.0.0.0"])
    assert "fd42::1" not in names.certified(["0.0.0.0"])
    assert {"10.9.9.1", "fd42::1"} <= set(names.certified(["::"]))
    assert "172.16.0.9" in names.certified(["172.16.0.9"])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "gw", "gw.local", "10.9.9.1", "192.168.7.7"])
def test_pages_of_every_own_name_are_own_pages(host: str) -> None:
    assert wide().is_own_origin(f"https://{host}:5443", f"{host}:5443", "https")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "10.9.9.1:5443"),
        ("https://evil.example:5443", "evil.example:5443"),  # a name that is bound to our address
        ("https://10.9.9.1:9000", "10.9.9.1:5443"),  # another server on this machine
        ("http://10.9.9.1:5443", "10.9.9.1:5443"),
        ("https://10.9.9.1:8080", "10.9.9.1:5443"),
        ("https://10.9.9.2:5443", "10.9.9.1:5443"),
        ("null", "10.9.9.1:5443"),
        ("https://evil.example", None),
    ],
)
def test_pages_from_elsewhere_are_foreign(origin: str, host: str | None) -> None:
    assert not wide().is_own_origin(origin, host, "https")


def test_a_page_at_a_forwarded_port_is_an_own_page() -> None:
    assert wide().is_own_origin("https://10.9.9.1", "10.9.9.1", "https")
    assert wide().is_own_origin("https://10.9.9.1:9443", "10.9.9.1:9443", "wss")


def test_configured_origins_and_the_public_address_are_let_in() -> None:
    places = Places(Names(public_url="https://home.example/skep"), allowed_origins=["https://panel.example"])

    assert places.origins == {"https://home.example", "https://panel.example"}


@pytest.mark.parametrize(
    ("host", "local", "base"),
    [
        ("10.9.9.1:5443", "10.9.9.1", "https://10.9.9.1:5443"),
        ("GW.local:5443", "10.9.9.1", "https://gw.local:5443"),
        ("192.168.7.7:5443", "192.168.7.7", "https://192.168.7.7:5443"),
        ("evil.example:5443", "192.168.7.7", "https://192.168.7.7:5443"),
        ("evil.example", "10.9.9.1", "https://10.9.9.1:5443"),
        ("10.9.9.1:9443", "10.9.9.1", "https://10.9.9.1:9443"),
        (None, "192.168.7.7", "https://192.168.7.7:5443"),
        ("a:b:c", "10.9.9.1", "https://10.9.9.1:5443"),
        (None, None, "https://10.9.9.1:5443"),
    ],
)
def test_addresses_are_those_the_caller_came_to_if_they_are_ours(
    host: str | None, local: str | None, base: str
) -> None:
    assert at(wide(), host, local).base == base


def test_nobody_from_elsewhere_is_told_of_loopback_and_nobody_of_a_wildcard() -> None:
    far, here = at(wide(), "10.9.9.1:5443"), at(wide(), "127.0.0.1:8080", "127.0.0.1", "http")

    assert (far.http, far.mqtt, far.mqtts) == (None, None, "mqtts://10.9.9.1:8883")
    assert here == Urls(
        http="http://127.0.0.1:8080",
        https="https://127.0.0.1:5443",
        mqtt="mqtt://127.0.0.1:1883",
        mqtts="mqtts://127.0.0.1:8883",
        base="https://127.0.0.1:5443",
    )


def test_a_listener_on_one_address_is_named_by_it_for_callers_of_another() -> None:
    places = Places(NAMES)
    places.listens(Listener("https", "10.9.9.1", 5443), Listener("mqtts", "127.0.0.1", 8883))

    assert at(places, "127.0.0.1:5443", "127.0.0.1").base == "https://10.9.9.1:5443"
    assert at(places, "gw.local:5443") == Urls(https="https://gw.local:5443", base="https://gw.local:5443")


def test_without_a_word_of_the_caller_the_owner_s_own_name_goes_first() -> None:
    places = wide(Names(configured=("gw.example",), addresses=("172.17.0.2",)))

    assert places.urls().https == "https://gw.example:5443"
    assert places.urls(places.place_at("172.17.0.2")).mqtts == "mqtts://gw.example:8883"
    assert places.urls(places.place_at("127.0.0.1")).mqtts == "mqtts://127.0.0.1:8883"
    assert places.urls(places.place_at(None)).mqtts == "mqtts://gw.example:8883"


@pytest.mark.parametrize("host", ["home.example", "127.0.0.1:8080", "evil.example", None])
def test_behind_a_proxy_the_public_address_is_told(host: str | None) -> None:
    places = wide(Names(addresses=("10.9.9.1",), public_url="https://home.example/skep"))

    assert at(places, host, "127.0.0.1", "http").base == "https://home.example/skep"
    assert at(places, "10.9.9.1:5443").base == "https://10.9.9.1:5443"


def test_a_new_name_counts_at_once_and_an_old_one_no_longer() -> None:
    places = wide()
    assert at(places, "10.9.9.1:5443").base == "https://10.9.9.1:5443"

    places.renamed(Names(addresses=("10.9.9.44",)))

    assert at(places, "10.9.9.44:5443", "10.9.9.44").base == "https://10.9.9.44:5443"
    assert places.is_own_origin("https://10.9.9.44:5443", None, "https")
    assert not places.is_own_origin("https://10.9.9.1:5443", "10.9.9.1:5443", "https")


def test_what_callers_say_takes_bounded_room() -> None:
    places = wide()

    for port in range(1, 5_000):
        at(places, f"10.9.9.1:{port}")

    assert len(places._places) <= 1_024
    assert len(places._urls) <= 1_024


def test_a_place_says_where_a_port_is_forwarded() -> None:
    assert wide().place("https", "10.9.9.1:9443", "10.9.9.1") == Place("10.9.9.1", "https://10.9.9.1:9443")
    assert wide().place("https", "10.9.9.1:5443", "10.9.9.1") == Place("10.9.9.1")
