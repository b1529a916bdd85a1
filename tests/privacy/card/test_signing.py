"""A signed card that was changed in any way is told from what was signed."""

import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from lightning_gep.cli.card import main
from lightning_gep.errors import ConfigurationError
from lightning_gep.privacy.card.signing import create_key, sign_card, verify_card

CARD = '{"guarantee": {"epsilon_spent": {"pld": 7.9}}}\n'


@pytest.fixture
def signed(tmp_path):
    card, key = tmp_path / "privacy_card.json", tmp_path / "key"
    card.write_text(CARD)
    public = create_key(key)
    sign_card(card, key)
    return card, public


CHANGES = {
    "privacy_card.json": [CARD.replace("7.9", "0.9"), CARD + " ", CARD[:-1], "", CARD.replace("pld", "pId")],
    "privacy_card.json.sig": ["", "00" * 64, "no hex"],
}


@pytest.mark.parametrize(("file", "changed"), [(file, text) for file, texts in CHANGES.items() for text in texts])
def test_a_changed_card_does_not(signed, file, changed):
    verify_card(*signed)
    signed[0].with_name(file).write_text(changed)
    with pytest.raises(ConfigurationError, match="NOT what the owner"):
        verify_card(*signed)


def test_the_key_of_somebody_else_does_not(signed, tmp_path):
    with pytest.raises(ConfigurationError, match="another key has signed it"):
        verify_card(signed[0], create_key(tmp_path / "other"))


def test_keys_are_private_and_never_overwritten(tmp_path):
    key = tmp_path / "key"
    create_key(key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError, match="not overwritten"):
        create_key(key)


def test_a_file_that_is_no_such_key_is_named(signed, tmp_path):
    card, public = signed
    with pytest.raises(ConfigurationError, match="not a private Ed25519 key"):
        sign_card(card, public)
    with pytest.raises(ConfigurationError, match="not a public Ed25519 key"):
        verify_card(card, card)
    rsa = generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "rsa").write_bytes(rsa)
    with pytest.raises(ConfigurationError, match="not a private Ed25519 key"):
        sign_card(card, tmp_path / "rsa")


def test_the_command(tmp_path, capsys):
    card, key = tmp_path / "privacy_card.json", tmp_path / "mine"
    card.write_text(CARD)
    main(["key", str(key)])
    main(["sign", str(card), "--key", str(key)])
    main(["verify", str(card), "--key", f"{key}.pub"])
    assert "is unchanged since" in capsys.readouterr().out
    card.write_text(CARD.replace("7.9", "1"))
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(card), "--key", f"{key}.pub"])
    assert ended.value.code == 2
    assert "is NOT what" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sign", str(tmp_path / "missing"), "--key", str(key)])
    assert "No such file" in capsys.readouterr().err
