"""What a run writes does not contain the secret that decided its batches, and two starts from one state differ."""

import base64
import json

import numpy as np
import torch

from lightning_gep.algorithm.gep import gradient_embedding_perturbation
from lightning_gep.algorithm.noise import SystemNoise
from lightning_gep.algorithm.tracked import TrackedSubspace
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.plan import PrivacyPlan
from lightning_gep.privacy.release import GEP
from lightning_gep.privacy.sampling import PoissonSampler, Secret


def run(directory, secret, state=None, steps=3):
    """A small private run on the core alone, with a ledger and a checkpoint a step; gives its draws and result."""
    plan = PrivacyPlan.make(
        GEP(1.0, 0.5),
        num_records=200,
        expected_batch_size=20,
        delta=1e-3,
        noise_multiplier=1.0,
        steps=12,
        k=4,
        num_parameters=12,
        accountant="rdp",
    )
    account = PrivacyAccount.from_state(state["account"], plan) if state else PrivacyAccount(plan)
    account.resume_ledger(directory / "ledger") if state else account.open_ledger(directory / "ledger")
    subspace = TrackedSubspace((12,), (4,), num_anchors=8)
    if state:
        subspace.load_state_dict(state["subspace"])
    sampler = PoissonSampler(200, 20, secret=secret, steps_per_epoch=steps)
    data = torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    weights, noise, draws = torch.zeros(12, dtype=torch.float64), SystemNoise(), []
    sampler.first_step = account.steps
    for indices in sampler:
        draws.append(indices)
        gradient, _ = gradient_embedding_perturbation(
            lambda: [torch.randn(8, 12)],
            [data[indices]],
            subspace=subspace,
            release=plan.release,
            noise=noise,
            expected_batch_size=plan.expected_batch_size,
            step=account.steps,
            charge=account.charge,
        )
        weights = weights - 0.1 * gradient
        checkpoint = {"account": account.state_dict(), "subspace": subspace.state_dict(), "weights": weights}
        torch.save(checkpoint, directory / f"checkpoint{account.steps}.pt")
        (directory / "report.json").write_text(json.dumps(account.report()) + repr(sampler.__dict__))
    account.ledger.close()
    return draws, weights


def encodings(secret):
    raw = secret.reveal()
    yield from (
        raw,
        raw[::-1],
        raw.hex().encode(),
        base64.b64encode(raw)[:40],
        str(int.from_bytes(raw, "little")).encode(),
    )
    yield str(list(raw)).encode()
    yield np.frombuffer(raw, np.uint8).astype(np.int64).tobytes()
    for step in range(4):
        key = secret.key("poisson", step)
        yield from (key.to_bytes(16, "little"), str(key).encode(), f"{key:x}".encode())


def found_in(directory, secret):
    contents = b"\0".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    return [encoding for encoding in encodings(secret) if encoding in contents]


def test_no_file_of_a_run_contains_the_secret(tmp_path):
    secret = Secret()
    run(tmp_path, secret)
    assert found_in(tmp_path, secret) == []
    (tmp_path / "leak.txt").write_text(secret.reveal().hex())
    assert found_in(tmp_path, secret), "the search itself must find what is there"


def test_two_starts_from_one_state_draw_different_batches_and_noise(tmp_path):
    run(tmp_path, Secret())
    state = torch.load(tmp_path / "checkpoint3.pt", weights_only=True)
    (first, one), (second, other) = (run(tmp_path, Secret(), state) for _ in range(2))
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert not torch.equal(one, other)


def test_both_resumes_are_counted(tmp_path):
    run(tmp_path, Secret())
    state = torch.load(tmp_path / "checkpoint3.pt", weights_only=True)
    for expected in (6, 9):
        run(tmp_path, Secret(), state)
        assert (tmp_path / f"checkpoint{expected}.pt").exists()
