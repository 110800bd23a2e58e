"""Encrypted files: AES-256-GCM in chunks under a key that a passphrase opens.

A file is a line of JSON and its chunks:

    SKEP-ENCRYPTED {"v":1,"n":32768,"r":8,"p":1,"salt":…,"wrapped":…,"file":…,"chunk":1048576}\\n
    chunk 0, chunk 1, … (each ciphertext and a tag of 16 bytes; all but the last hold `chunk` bytes)

scrypt makes a key of passphrase and `salt`; it opens `wrapped` (nonce of 12 bytes, the random data key encrypted by
AES-256-GCM with the associated data `SKEP-ENCRYPTED `, its tag). HKDF-SHA256 of data key and `file` (32 random bytes,
the salt; info `skep backup file`) gives the key of this one file. The nonce of a chunk is its number (11 bytes, big
endian) and 1 for the last chunk, else 0; the whole first line is associated data of every chunk. So no chunk can be
changed, left out, moved, or taken from another file, and a file that was cut is noticed. All files of a folder share
the data key, so that the passphrase is worked out once.
"""

import json
import os
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from things.errors import Forbidden, Invalid, StorageDamaged

MAGIC = b"SKEP-ENCRYPTED "
CHUNK = 1 << 20
MIN_PASSPHRASE = 12
_TAG = 16
_MAX_LINE = 4_096
_MOST_WORK = 1 << 20
"""The largest `n` that is believed: a file must not make its reader take all memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A data key and how a passphrase opens it; made by `new_key`, opened by `Keyring`."""

    n: int
    r: int
    p: int
    salt: bytes
    wrapped: bytes
    data: bytes


def new_key(passphrase: str) -> Key:
    """A key for a backup that begins. Raises Invalid for a passphrase that is too short."""
    if len(passphrase) < MIN_PASSPHRASE:
        raise Invalid(f"a passphrase needs {MIN_PASSPHRASE} characters at least")
    n, r, p, salt, data, nonce = 1 << 15, 8, 1, os.urandom(16), os.urandom(32), os.urandom(12)
    wrapped = nonce + AESGCM(_derived(passphrase, salt, n, r, p)).encrypt(nonce, data, MAGIC)
    return Key(n=n, r=r, p=p, salt=salt, wrapped=wrapped, data=data)


class Keyring:
    """Opens keys by one passphrase, each once."""

    def __init__(self, passphrase: str | None) -> None:
        self._passphrase = passphrase
        self._opened: dict[bytes, Key] = {}

    def opened(self, *, n: int, r: int, p: int, salt: bytes, wrapped: bytes) -> Key:
        """Raises Forbidden for another passphrase, or none."""
        if self._passphrase is None:
            raise Forbidden("this backup is encrypted: give its passphrase")
        if wrapped not in self._opened:
            if not (1 < n <= _MOST_WORK and 0 < r <= 16 and 0 < p <= 16):
                raise StorageDamaged("the key of the backup is not one that was written")
            try:
                unlocking = AESGCM(_derived(self._passphrase, salt, n, r, p))
                data = unlocking.decrypt(wrapped[:12], wrapped[12:], MAGIC)
            except (InvalidTag, ValueError) as error:
                raise Forbidden("this is not the passphrase of the backup, or its key was changed") from error
            self._opened[wrapped] = Key(n=n, r=r, p=p, salt=salt, wrapped=wrapped, data=data)
        return self._opened[wrapped]


class EncryptedWriter:
    """Encrypts what is written to it; `close` writes the last chunk and leaves the file open."""

    def __init__(self, file: IO[bytes], key: Key) -> None:
        salt = os.urandom(32)
        document = {
            "v": 1, "n": key.n, "r": key.r, "p": key.p, "salt": _text(key.salt), "wrapped": _text(key.wrapped),
            "file": _text(salt), "chunk": CHUNK,
        }  # fmt: skip
        self._line = MAGIC + json.dumps(document, separators=(",", ":")).encode() + b"\n"
        self._cipher = _cipher_of(key, salt)
        self._file = file
        self._waiting = bytearray()
        self._number = 0
        file.write(self._line)

    def write(self, data: bytes) -> int:
        self._waiting += data
        while len(self._waiting) > CHUNK:  # the last chunk may be a full one
            self._put(bytes(self._waiting[:CHUNK]), is_last=False)
            del self._waiting[:CHUNK]
        return len(data)

    def flush(self) -> None:
        """Chunks are written when they are full."""

    def close(self) -> None:
        self._put(bytes(self._waiting), is_last=True)
        self._waiting.clear()

    def _put(self, chunk: bytes, *, is_last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), chunk, self._line))
        self._number += 1


class DecryptedReader:
    """Reads what `EncryptedWriter` wrote. Raises StorageDamaged, Forbidden."""

    def __init__(self, file: IO[bytes], keyring: Keyring) -> None:
        self._file = file
        self._line = file.readline(_MAX_LINE)
        try:
            found = json.loads(self._line[len(MAGIC) :])
            key = keyring.opened(
                n=int(found["n"]),
                r=int(found["r"]),
                p=int(found["p"]),
                salt=b64decode(found["salt"]),
                wrapped=b64decode(found["wrapped"]),
            )
            self._cipher = _cipher_of(key, b64decode(found["file"]))
            self._size = int(found["chunk"]) + _TAG
        except (ValueError, KeyError, TypeError) as error:
            raise StorageDamaged(f"the head of an encrypted file cannot be read: {error}") from error
        if not _TAG < self._size <= 64 * CHUNK:
            raise StorageDamaged("the head of an encrypted file is not one that was written")
        self._next = file.read(self._size)
        self._number = 0
        self._ready = b""
        self._ended = False

    def read(self, count: int = -1) -> bytes:
        parts, wanted = [], count
        while wanted and not (self._ended and not self._ready):
            if not self._ready:
                self._ready = self._chunk()
                continue
            part = self._ready if wanted < 0 else self._ready[:wanted]
            self._ready = self._ready[len(part) :]
            parts.append(part)
            wanted -= len(part) if wanted > 0 else 0
        return b"".join(parts)

    def _chunk(self) -> bytes:
        current, self._next = self._next, self._file.read(self._size)
        self._ended = not self._next
        try:
            found = self._cipher.decrypt(_nonce(self._number, is_last=self._ended), current, self._line)
        except (InvalidTag, ValueError) as error:
            raise StorageDamaged("an encrypted file was changed or cut off") from error
        self._number += 1
        return found


def _derived(passphrase: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=n, r=r, p=p).derive(passphrase.encode())


def _cipher_of(key: Key, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), length=32, salt=salt, info=b"skep backup file").derive(key.data))


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11) + bytes([is_last])


def _text(content: bytes) -> str:
    return b64encode(content).decode()
