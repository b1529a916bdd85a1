"""Signed cards: whoever has the signer's public key can tell whether a card was changed after it was signed.

A signature says who vouches for a card and that it is unchanged, not that its figures are true.
"""

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lightning_gep.errors import ConfigurationError

PEM = serialization.Encoding.PEM


def create_key(path: Path) -> Path:
    """A new Ed25519 key at `path`, readable by its owner only, and its public half beside it as <path>.pub."""
    key, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.name}.pub")
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private)
    except FileExistsError:
        raise ConfigurationError(f"There is a file at {path} already, and keys are not overwritten.") from None
    public.write_bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return public


def sign_card(card: Path, key: Path) -> Path:
    """Sign the card file with a private key; the signature is written beside it as <card>.sig."""
    signer = _loaded(key, lambda pem: serialization.load_pem_private_key(pem, password=None))
    if not isinstance(signer, Ed25519PrivateKey):
        raise ConfigurationError(f"{key} is not a private Ed25519 key without a password. Make one with gep-card key.")
    signature = _signature_of(card)
    signature.write_text(signer.sign(card.read_bytes()).hex() + "\n")
    return signature


def verify_card(card: Path, public_key: Path) -> None:
    """Raises ConfigurationError unless the card is, byte for byte, what the owner of the key has signed."""
    verifier = _loaded(public_key, serialization.load_pem_public_key)
    if not isinstance(verifier, Ed25519PublicKey):
        raise ConfigurationError(f"{public_key} is not a public Ed25519 key. Give the .pub file of the signer.")
    try:
        verifier.verify(bytes.fromhex(_signature_of(card).read_text()), card.read_bytes())
    except (InvalidSignature, ValueError):
        raise ConfigurationError(
            f"{card} is NOT what the owner of {public_key} has signed: the card or its signature was changed, or "
            "another key has signed it."
        ) from None


def _signature_of(card: Path) -> Path:
    return card.with_name(f"{card.name}.sig")


def _loaded(path: Path, load: object) -> object:
    try:
        return load(path.read_bytes())  # type: ignore[operator]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
