"""TLS of a switch's control plane: its certificate, and how a client knows that it talks to the right switch.

The job's key and the cluster's token travel there, so an eavesdropper could take part in sums. A client knows its
switch in one of three ways:

| by | how | what is checked |
|---|---|---|
| a CA | `PACELINE_SWITCH_CA`, a file of certificates | signature, name (or IP address) and dates |
| a fingerprint | `PACELINE_SWITCH_FINGERPRINT`, or `host:port#sha256=HEX` | the certificate itself, not its dates |
| the system's CAs | `https://host:port` | as for a CA |

Nothing is sent before the check: neither token nor key. A client that asks for TLS never goes on without it.
"""

import hashlib
import hmac
import http.client
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError
from paceline.secret_files import check_private

FINGERPRINT_DIGITS = 64
CA, FINGERPRINT = "PACELINE_SWITCH_CA", "PACELINE_SWITCH_FINGERPRINT"


class UntrustedError(Exception):
    """The other side is not the switch that was asked for, or speaks no TLS; its text is one line."""


@dataclass(frozen=True)
class Trust:
    """How a client knows its switch; with neither field, by the system's CAs."""

    ca: str = ""
    """A file of certificates."""
    fingerprint: str = ""
    """SHA-256 of the switch's certificate, as hexadecimal digits."""

    def context(self) -> ssl.SSLContext:
        """For connections; a file that is none is a `UserError`."""
        if self.fingerprint:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            try:
                context = ssl.create_default_context(cafile=self.ca or None)
            except (OSError, ssl.SSLError) as error:
                reason = error.strerror if isinstance(error, FileNotFoundError) else "has no certificate"
                raise UserError(f"{self.ca}: {reason}", place=CA) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def connect(self, host: str, port: int, timeout_s: float) -> http.client.HTTPSConnection:
        """A connection to the right switch, on which nothing was sent yet; `UntrustedError`, or `OSError`."""
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.context())
        try:
            connection.connect()
            self._check(connection)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise UntrustedError(f"its certificate is not trusted: {error.verify_message}") from None
        except ssl.SSLError as error:
            connection.close()
            raise UntrustedError(_REASONS.get(error.reason, f"TLS failed: {error.reason or error}")) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: http.client.HTTPSConnection) -> None:
        if not self.fingerprint:
            return
        sock: socket.socket = connection.sock
        assert isinstance(sock, ssl.SSLSocket)
        found = hashlib.sha256(sock.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(found, self.fingerprint):
            raise UntrustedError(f"its certificate is another one: sha256={found}")


_REASONS = dict.fromkeys(
    ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"), "it speaks no TLS"
)
"""OpenSSL's names of reasons, in our words."""


def parse_fingerprint(text: str, place: str) -> str:
    """64 hexadecimal digits, with or without colons, as `openssl x509 -fingerprint -sha256` prints them."""
    digits = text.strip().rpartition("=")[2].replace(":", "").lower()
    if len(digits) != FINGERPRINT_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise UserError(f'"{text}" is not the SHA-256 of a certificate: 64 hexadecimal digits', place=place)
    return digits


def trust_in(env: Mapping[str, str] = os.environ) -> Trust | None:
    """What the environment says of the switch; None: nothing, so no TLS unless the address asks for it."""
    fingerprint = env.get(FINGERPRINT, "").strip()
    trust = Trust(env.get(CA, "").strip(), parse_fingerprint(fingerprint, FINGERPRINT) if fingerprint else "")
    if trust.ca and not trust.fingerprint:
        trust.context()  # a missing file is told now
    return trust if trust != Trust() else None


def check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Refuse what a switch could not serve with, in one line."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise UserError("--tls-cert and --tls-key belong together", place="--tls-key")
    check_private(key, "--tls-key")
    try:
        certificate.open("rb").close()
    except OSError as error:
        raise UserError(f"{certificate}: {error.strerror}", place="--tls-cert") from None
    try:
        # A key under a password would ask for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        told = {"KEY_VALUES_MISMATCH": f"{key} is not the key of this certificate"}
        neither = f"{certificate} and {key} are no certificate and its key (PEM)"
        raise UserError(told.get(error.reason, neither), place="--tls-cert") from None


def fingerprint_of(certificate: Path) -> str:
    """What a client is to be told of a certificate: the SHA-256 of the first one in the file."""
    text = certificate.read_text(encoding="ascii", errors="replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
