"""How an account comes to its credential, and how its right ends."""

import base64
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from authn.credentials import CredentialKind
from authz.documents import RuleDocument
from authz.policy.sets import set_document
from tests.support import Skep
from tests.trials.left_behind.cases import Case
from things.identity import AccountType, Principal, Role
from things.parsing import parsed

PASSWORD, OTHER = "correct horse battery", "another long password"
ROOT = Principal(account="root", type=AccountType.CONSUMER, role=Role.ADMIN)


@dataclass(slots=True)
class Rights:
    """Accounts of one runtime, given and taken."""

    runtime: Skep
    folder: Path
    keys: dict[str, Ed25519PrivateKey] = field(default_factory=dict)

    async def give(self, case: Case) -> None:
        """Make the account with the credential of the case."""
        stores = self.runtime.running.stores
        authenticator = stores.authenticator
        type_, role = (AccountType.AGENT, None) if case.act.is_agents else (AccountType.CONSUMER, Role.OPERATOR)
        public = None
        if case.credential == "key":
            key = self.keys[case.name] = Ed25519PrivateKey.generate()
            public = key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        _, token = await authenticator.administration.add(
            case.name,
            type_,
            role,
            password=None if case.act.is_agents else PASSWORD,
            public_key=None if public is None else public.decode(),
            by="test",
        )
        match case.credential:
            case "token":
                case.secret = token or ""
            case "password":
                case.secret = PASSWORD
            case "login":
                opened = await authenticator.open_login(case.name, PASSWORD, source=None)
                case.secret = opened.refresh_token if case.act.name == "refresh token" else opened.access_token
            case "certificate":
                certificates = self.runtime.running.certificates
                pem, private, _ = await authenticator.certificates.issue(certificates, case.name, None, by="test")
                file = self.folder / f"{case.name}.pem"
                file.write_text(pem + (private or ""))
                case.tls = certificates.client_context()
                case.tls.load_cert_chain(file)

    async def provision(self, case: Case) -> str | None:
        """What a device gets for its key now."""
        key = self.keys[case.name]
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        ask = self.runtime.running.stores.authenticator.provisioning.ask
        asked = await ask(case.name, public.decode(), source=case.name)
        signature = key.sign(f"skep provision {case.name} {asked.challenge}".encode())
        signed = base64.b64encode(signature).decode()
        answer = await ask(case.name, public.decode(), signature=signed, challenge=asked.challenge, source=case.name)
        return answer.token

    async def take(self, case: Case) -> None:
        """End the right of the case."""
        await self._take(case)
        case.revoked_at = self.runtime.running.runtime.clock()

    async def _take(self, case: Case) -> None:
        stores, name = self.runtime.running.stores, case.name
        administration = stores.authenticator.administration
        match case.revocation:
            case "disable":
                await administration.disable(name, by="test")
            case "remove":
                await administration.remove(name, by="test")
            case "remake":
                await administration.remove(name, by="test")
                if case.act.is_agents:
                    await administration.add(name, AccountType.AGENT, by="test")
                else:
                    await administration.add(name, AccountType.CONSUMER, Role.OPERATOR, password=OTHER, by="test")
            case "everything":
                await administration.revoke_all(name, by="test")
            case "one":
                await administration.revoke(self._credential(case), by="test")
            case "credential":
                await self._by_kind(case)
            case "role none":
                await administration.set_role(name, Role.NONE, by="test")
            case "demote":
                await administration.set_role(name, Role.VIEWER, by="test")
            case "rule":
                document = {"id": f"no-{name}", "effect": "deny", "thing": "dtw:works:*", "accounts": [name]}
                await stores.authorizer.put_rule(parsed(RuleDocument, document), ROOT)
            case _:
                rule = {"id": "no", "effect": "block", "target": {"sender": name, "agent": "works"}}
                policies = [{"id": "all", "rules": [rule]}]
                await stores.authorizer.put_policy_set(set_document({"v": 1, "id": f"no-{name}", "policies": policies}))

    async def _by_kind(self, case: Case) -> None:
        """The way that each kind of credential has of its own."""
        authenticator = self.runtime.running.stores.authenticator
        match case.credential:
            case "token":
                await authenticator.administration.revoke_token(self._credential(case), by="test")
            case "certificate":
                await authenticator.certificates.revoke(self._credential(case), by="test")
            case "key":
                await authenticator.administration.update(case.name, public_key="", by="test")
            case _:
                await authenticator.administration.set_password(case.name, OTHER, by="test")

    def _credential(self, case: Case) -> str:
        register = self.runtime.running.stores.authenticator.register
        (found,) = register.of(register.account(case.name), CredentialKind(case.credential))
        return found.credential_id
