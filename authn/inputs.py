"""What the methods of `dtw:authn:admin` and `dtw:authn:user` take."""

from typing import Annotated, Literal

from pydantic import Field

from things.methods import Input

Name = Annotated[str, Field(min_length=1, max_length=64)]
Text = Annotated[str, Field(max_length=1_024)]
Seconds = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class Client(Input):
    client_id: Name


class AddClient(Client):
    type: Literal["agent", "consumer", "service"]
    role: Name | None = None
    display_name: Text = ""
    password: str | None = None
    public_key: Text | None = None
    token: bool = True
    expires_in: Seconds | None = None


class AddConsumer(Client):
    display_name: Text = ""
    password: str | None = None
    role: Name | None = None


class AddSpeaker(Client):
    display_name: Text = ""
    public_key: Text | None = None


class UpdateClient(Client):
    display_name: Text | None = None
    public_key: Text | None = None


class Role(Client):
    role: Name


class Password(Client):
    password: str


class IssueToken(Client):
    label: Text = ""
    expires_in: Seconds | None = None


class MaybeClient(Input):
    client_id: Name | None = None


class Token(Input):
    token_id: Name


class Serial(Input):
    serial: Name


class SessionID(Input):
    session_id: Name


class Device(Client):
    public_key: Text
    display_name: Text = ""


class Certificate(Client):
    public_key: Text | None = None


class Acts(Input):
    after: Annotated[int, Field(ge=0)] | None = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 100
    class_: Annotated[Literal["administration", "access", "use", "refusals"] | None, Field(alias="class")] = None


class Keys(Input):
    long_lived: bool = False


class DisplayName(Input):
    display_name: Text


class OwnPassword(Input):
    old_password: str
    new_password: str


class PublicKey(Input):
    public_key: Text
    challenge: Name | None = None
    signature: Text | None = None


class Refresh(Input):
    refresh_token: Annotated[str, Field(max_length=2_048)]


class Logout(Input):
    everywhere: bool = False


class CredentialID(Input):
    credential_id: Annotated[str, Field(min_length=1, max_length=1_024)]


class OwnCredentials(Input):
    ended: bool = False


class ListCredentials(OwnCredentials):
    client_id: Name | None = None
    account_id: Name | None = None
