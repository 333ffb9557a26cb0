"""`context-proxy key`: makes a key and prints the entry that lets it in.

The key is 256 random bits and is shown once. Only its SHA-256 is kept, and no key can be derived from that hash. A
plain hash is therefore enough here. It would not be enough for a password that a person chose.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from ctypes.util import find_library
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, get_args

import typer
from pydantic import ValidationError

from proxy.cli.settings_toml import render_literal
from proxy.errors import ConfigError
from proxy.settings.load import KEYS_FILE
from proxy.settings.model import ApiKeySettings, Plane

KEY_PREFIX = "cp-"
"""Prefix of the proxy's keys, so that a leaked key can be searched for."""


def _complete_plane(incomplete: str) -> list[str]:
    return [plane for plane in get_args(Plane) if plane.startswith(incomplete)]


def key(
    plane: Annotated[
        str,
        typer.Option(help="The plane that it opens: data, admin, read or metrics.", autocompletion=_complete_plane),
    ] = "data",
    tenant: Annotated[
        str, typer.Option(help="The tenant whose sessions it opens; * for all (not with data).")
    ] = "default",
    name: Annotated[str, typer.Option(help="Its name in logs; empty: after tenant and plane.")] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Put one of each plane here, and keys.toml with their entries, once.")
    ] = None,
) -> None:
    """Make a key. Print the key itself on stderr, and its entry for the config file on stdout."""
    if folder is not None:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)  # one that is there stays as open as it is
            write_keys(folder, tenant)
        except OSError as error:
            allowed = f"a folder to write in ({error.strerror})"
            raise ConfigError("folder", str(folder), allowed, source="--folder") from None
        return
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    typer.echo(render_entry(secret, name, tenant, plane))
    # The key goes to stderr, so that `context-proxy key >>config.toml` does not write it to the file.
    typer.echo("\nThe key, shown only now; clients send it as x-context-key:", err=True)
    typer.echo(secret, err=True)


def write_keys(folder: Path, tenant: str) -> None:
    """Write a file with a key for each plane, and keys.toml, a config file with their entries, unless keys.toml exists.
    Also write a password for Prometheus' own pages, and the web.yml that asks for it, unless web.yml exists.

    For containers: the first start makes the keys, later starts keep them. The process that scrapes /metrics runs as
    another user, and so does Grafana, which asks Prometheus. Of the secrets, other users can read only that key and the
    password.
    """
    if not (folder / "web.yml").exists():
        password = make_password()
        write_file(folder / "prometheus.password", password, 0o644)
        write_file(folder / "web.yml", make_web_config(password), 0o644)
    config = folder / KEYS_FILE
    if write_plane_keys(folder, tenant):
        typer.echo(f"{config} and a file with the key of each plane beside it")
    else:
        typer.echo(f"{config} is there already; its keys stay as they are")


def write_plane_keys(folder: Path, tenant: str) -> dict[str, str]:
    """Write a file with a key for each plane, and keys.toml with their entries; return the keys by plane. If keys.toml
    exists, nothing is written and the result is empty. Raises OSError if the folder cannot be written."""
    config = folder / KEYS_FILE
    if config.exists():
        return {}
    keys = {plane: KEY_PREFIX + secrets.token_urlsafe(32) for plane in get_args(Plane)}
    for plane, secret_key in keys.items():
        write_file(folder / f"{plane}.key", secret_key, 0o644 if plane == "metrics" else 0o600)
    entries = [render_entry(secret_key, "", tenant, plane) for plane, secret_key in keys.items()]
    write_file(config, "\n\n".join(entries) + "\n", 0o600)  # last: an interrupted start is repeated in full
    return keys


def write_file(file: Path, text: str, mode: int) -> None:
    """Write a file that has this mode from the moment it exists. Raises OSError if it cannot be written."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as out:
        os.fchmod(out.fileno(), mode)  # regardless of the umask: the scraper has to read it
        out.write(text)


def render_entry(secret_key: str, name: str, tenant: str, plane: str) -> str:
    """Return the `[[keys]]` entry of a key. Raises ConfigError if the proxy could not use the entry."""
    everybody = "everybody" if tenant == "*" else tenant
    tree = {
        "name": name or f"{everybody}-{plane}-{secrets.token_hex(3)}",
        "sha256": sha256(secret_key.encode()).hexdigest(),
        "tenant": tenant,
        "plane": plane,
    }
    try:
        checked = ApiKeySettings.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = str(first["loc"][0]) if first["loc"] else "tenant"
        allowed = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        raise ConfigError(wrong, tree[wrong], allowed, source=f"--{wrong}") from None
    return "\n".join(
        ["[[keys]]", *(f"{field} = {render_literal(getattr(checked, field))}" for field in ApiKeySettings.model_fields)]
    )


# A password for Prometheus' own pages, and the web configuration that asks for it.
#
# Prometheus accepts only bcrypt. Python has no bcrypt, so the C library's crypt makes the hash. The password is 256
# random bits. The lowest bcrypt cost that Prometheus accepts is therefore enough: nobody can try all passwords.


USER: Final = "prometheus"
COST: Final = 5
_ALPHABET: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""Characters of bcrypt's salts."""


def make_password() -> str:
    """Return a password of 256 random bits."""
    return secrets.token_urlsafe(32)


def make_web_config(password: str) -> str:
    """Return Prometheus' `web.config.file` that asks for this password. Raises ConfigError if it cannot be hashed."""
    return f"basic_auth_users:\n  {USER}: {hash_password(password)}\n"


def hash_password(password: str) -> str:
    """Return the bcrypt hash of a password. Raises ConfigError if the C library has no bcrypt."""
    # The last of the 22 characters carries two bits, so only four characters are allowed there.
    salt = "".join(secrets.choice(_ALPHABET) for _ in range(21)) + secrets.choice(".Oeu")
    try:
        crypt = ctypes.CDLL(find_library("crypt") or "libcrypt.so.1").crypt
    except (OSError, AttributeError) as error:
        raise ConfigError("folder", "prometheus.password", f"a system with libcrypt ({error})") from None
    crypt.restype, crypt.argtypes = ctypes.c_char_p, (ctypes.c_char_p, ctypes.c_char_p)
    found: bytes | None = crypt(password.encode(), f"$2b${COST:02}${salt}".encode())
    if found is None or not found.startswith(b"$2b$"):
        raise ConfigError("folder", "prometheus.password", "a libcrypt with bcrypt")
    return found.decode()
