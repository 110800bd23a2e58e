"""`skep login` and `skep logout`: commands on a laptop as on the gateway itself."""

import hashlib
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import click

from skep import logins
from skep.cli.access import run_async
from skep.cli.output import print_table
from skep.http_client import HTTPClient
from skep.tls import client_context
from things.errors import BadAddress, Forbidden, Unauthenticated, Unavailable
from things.messages import JSONValue

CLAIM = "claim="


@click.command(
    epilog="""\b
Examples:
  skep login https://gw.local:8443
  skep login 'https://gw.local:8443/#claim=…'     the link that skep run printed
  skep things ls                                  at the gateway you logged in last"""
)
@click.argument("url", required=False)
@click.option("--account", metavar="NAME", help="Who logs in. [default: asked for]")
@click.option("--ca", type=click.Path(path_type=Path, exists=True), help="Certificate of the gateway's authority.")
@click.option("--fingerprint", metavar="SHA256", help="Of that certificate, as the gateway printed it.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--list", "lists", is_flag=True, help="List the logins that are kept.")
def login(
    url: str | None, account: str | None, ca: Path | None, fingerprint: str | None, password_stdin: bool, lists: bool
) -> None:
    """Log in at a gateway, for all later commands without --home: its certificate is pinned, and the login renewed.

    Without --ca, the certificate comes from the gateway; compare its fingerprint with the one that skep run printed.
    """
    if lists:
        kept = logins.all_saved()
        print_table(("gateway", "account"), [(each.url, each.account) for each in kept])
        return
    if url is None:
        raise click.UsageError("say where: skep login https://HOST:PORT")
    address, code = _split(url)
    pinned = _authority(address, ca, fingerprint)
    name = account or click.prompt("account")
    password = sys.stdin.readline().rstrip("\n") if password_stdin else click.prompt("password", hide_input=True)
    body: dict[str, JSONValue] = {"login": name, "password": password}
    if code:
        body["code"] = code

    async def ask() -> JSONValue:
        async with HTTPClient(address, tls=client_context(pem=pinned)) as client:
            return await client.json("POST", "/authn/claim" if code else "/authn/login", body)

    kept_login = logins.save(address, run_async(ask()), pinned)
    click.echo(f"logged in at {kept_login.url} as {kept_login.account}")


@click.command(epilog="Example: skep logout")
@click.argument("url", required=False)
def logout(url: str | None) -> None:
    """End a login and forget it: the last one, or that at URL."""
    kept = logins.existing(_split(url)[0] if url else None)

    async def end() -> None:
        async with HTTPClient(kept.url, ca=kept.ca, kept=kept) as client:
            await client.json("POST", "/authn/logout", {})

    where = kept.url
    try:
        run_async(end())
    except (Unauthenticated, Unavailable) as error:
        click.echo(f"it could not be ended at the gateway ({error.detail}); it is forgotten here", err=True)
    kept.forget()
    click.echo(f"logged out of {where}")


def _split(url: str) -> tuple[str, str | None]:
    """The address, and the claim code that a printed link brings along."""
    parts = urlsplit(url)
    code = parts.fragment.removeprefix(CLAIM) if parts.fragment.startswith(CLAIM) else None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise BadAddress(f"{url!r} is not an address of a gateway; expected https://HOST:PORT")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), code


def _authority(url: str, ca: Path | None, fingerprint: str | None) -> str | None:
    """The certificate (PEM) to trust; None for the system's. Raises Forbidden, Unavailable."""
    if not url.startswith("https:"):
        return None
    if ca is not None:
        pem = ca.read_text()
    else:
        if run_async(_is_trusted(url)):
            return None
        pem = run_async(_fetched(url))
    try:
        shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except ValueError as error:
        raise Unavailable(f"what {ca or url} has is no certificate") from error
    if fingerprint is not None:
        if _plain(fingerprint) != shown:
            raise Forbidden(f"the certificate at {url} has another fingerprint: {_spelled(shown)}")
    elif ca is None:
        click.echo(
            f"{url} signs its certificate by an authority of its own. Fingerprint (SHA-256):\n  {_spelled(shown)}"
        )
        if not click.confirm("Is it the one that the gateway printed?"):
            raise Forbidden("the fingerprint was not confirmed; nothing was sent")
    return pem


async def _is_trusted(url: str) -> bool:
    """Whether the system trusts what the gateway shows."""
    try:
        async with HTTPClient(url) as client:
            await client.json("GET", "/livez")
    except Unavailable as error:
        if not _is_unverified(error):
            raise
        return False
    return True


def _is_unverified(error: BaseException) -> bool:
    """Whether a certificate that could not be verified is what it came of."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


async def _fetched(url: str) -> str:
    """The authority's certificate, from whoever answers there: nothing secret is sent before it was compared."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with HTTPClient(url, tls=context) as client:
        return (await client.send("GET", "/ca.pem")).text


def _plain(fingerprint: str) -> str:
    return fingerprint.replace(":", "").replace(" ", "").lower()


def _spelled(digits: str) -> str:
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2)).upper()
