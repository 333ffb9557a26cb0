from __future__ import annotations

import re

from proxy.cli.key import hash_password, make_password, make_web_config


def test_a_hash_is_bcrypts_and_each_has_a_salt_of_its_own() -> None:
    password = make_password()
    made = {hash_password(password) for _ in range(5)}
    assert len(made) == 5
    assert all(re.fullmatch(r"\$2b\$05\$[./A-Za-z0-9]{53}", one) for one in made)


def test_the_password_is_not_in_the_configuration() -> None:
    password = make_password()
    assert len(password) > 40
    assert password not in make_web_config(password)
    assert make_web_config(password).startswith("basic_auth_users:\n  prometheus: $2b$")
