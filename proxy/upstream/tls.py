"""TLS settings of a connection to an upstream: the authorities to trust, and the certificate to show.

The authorities are the system's or those of the target's own bundle. The environment names none: the settings alone
decide which connection carries a request with somebody's key.
"""

from __future__ import annotations

import re
import ssl
import sys
from pathlib import Path
from typing import Final

import truststore

from proxy.errors import ConfigError
from proxy.upstream.target import Target

BUNDLES: Final = (
    "/etc/ssl/cert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/ca-bundle.pem",
)  # fmt: skip
"""Paths where systems keep their authorities, for a Python whose own OpenSSL was built for another system (truststore's
list)."""


def create_client_context(target: Target) -> ssl.SSLContext:
    """Return the TLS context for a target. Raises ConfigError if one of its files cannot be read."""
    try:
        context = _trusting(target.ca_bundle or None)
    except OSError as error:  # ssl.SSLError is one
        allowed = f"a readable PEM file ({error})"
        raise ConfigError(f"upstreams.{target.name}.ca_bundle", target.ca_bundle, allowed) from error
    if target.client_cert:
        try:
            # An encrypted key is refused: without this, OpenSSL would ask for the password on the terminal.
            context.load_cert_chain(target.client_cert, target.client_key or None, password=lambda: b"")
        except OSError as error:
            allowed = f"a PEM file with a certificate and its key without a password ({error})"
            raise ConfigError(f"upstreams.{target.name}.client_cert", target.client_cert, allowed) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _trusting(bundle: str | None) -> ssl.SSLContext:
    """Return a context that trusts a bundle's authorities, else the system's; never those of SSL_CERT_FILE or
    SSL_CERT_DIR."""
    if bundle is not None:
        return ssl.create_default_context(cafile=bundle)
    if sys.platform == "darwin":
        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(*_system_authorities())
    return context


def _system_authorities() -> tuple[str | None, str | None]:
    """Return the system's file and folder of authorities. Raises OSError if it has none."""
    built_in = ssl.get_default_verify_paths()  # its `openssl_` ones: the others are the environment's
    file, folder = Path(built_in.openssl_cafile), Path(built_in.openssl_capath)
    hashed = folder.is_dir() and any(re.fullmatch(r"[0-9a-fA-F]{8}\.\d", entry.name) for entry in folder.iterdir())
    if file.is_file() or hashed:
        return str(file) if file.is_file() else None, str(folder) if hashed else None
    found = next((one for one in BUNDLES if Path(one).is_file()), None)
    if found is None:
        raise FileNotFoundError("this system has no authorities; name a file of them")
    return found, None
