"""Plants bugs in copies of the package, one in each, and shows that a test fails for every one of them.

python -m tests.planted_bugs          all
python -m tests.planted_bugs 4 17     some, by their numbers

A bug is a small change that breaks the promise of docs/privacy.md, and the tests that have to notice it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("lightning_gep", "recipes", "tests", "conf", "pyproject.toml")


@dataclass(frozen=True)
class Bug:
    point: int
    """Of the promise, as docs/privacy.md numbers them."""
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        assert source.count(self.old) == 1, f"{self.file} has {source.count(self.old)} times: {self.old}"
        return source.replace(self.old, self.new)


BUGS = (
    Bug(
        1,
        "the step's σ is that of the part with more noise, but a record shows in both parts",
        "privacy/release.py",
        "return math.fsum(sigma**-2 for sigma in sigmas) ** -0.5",
        "return max(sigmas)",
        ("algorithm/test_clipping.py::test_the_worst_shift_in_units_of_the_noise_is_one_over_the_accounted_sigma",),
    ),
    Bug(
        1,
        "the residual is released without noise",
        "algorithm/gep.py",
        'r = perturb(sums.residual(B), release.residual, noise, step, "residual")',
        "r = None if release.residual is None else sums.residual(B)",
        ("test_audit.py::test_a_canary_shows_as_much_as_is_claimed_and_no_more",),
    ),
    Bug(
        1,
        "noise repeats after 50 steps: the difference of two releases has none",
        "algorithm/noise.py",
        "return torch.from_numpy(self._numpy.standard_normal(size))",
        "drawn, now = vars(self).setdefault('_drawn', {}), torch.from_numpy(self._numpy.standard_normal(size))\n"
        "            drawn[step, part] = drawn.get((step - 50, part), now)\n"
        "            return drawn[step, part]",
        ("test_audit.py::test_a_canary_shows_as_much_as_is_claimed_and_no_more",),
    ),
    Bug(
        1,
        "every 50th release has the raw gradient in it",
        "algorithm/gep.py",
        "[: len(G)], B, release, microbatch_size)",
        "[: len(G)], B, release, microbatch_size)\n        sums.gradient += G.sum(0) * (step % 50 > 48)",
        ("test_audit.py::test_a_canary_shows_as_much_as_is_claimed_and_no_more",),
    ),
    Bug(
        1,
        "every process draws noise of its own, divided by their number: the sum has too little",
        "strategy/fit.py",
        "make_noise(settings.generator, settings.seed) if processes.is_first else NoNoise()",
        "(lambda noise, draw: vars(noise).update(\n"
        "            normal=lambda *a, **k: draw(*a, **k) / processes.world_size) or noise\n"
        "        )(made := make_noise(settings.generator, settings.seed), made.normal)",
        ("test_audit.py::test_two_processes_release_every_record_once_and_the_noise_of_one",),
    ),
    Bug(
        1,
        "ε is stated at a δ of 1e-4 where a smaller one was asked for",
        "privacy/account.py",
        "EpsilonCurve(plan.event, plan.delta,",
        "EpsilonCurve(plan.event, max(plan.delta, 1e-4),",
        ("privacy/test_accounting.py::test_at_a_small_delta_epsilon_is_that_of_the_gaussian_mechanism",),
    ),
    Bug(
        1,
        "steps are accounted at half the rate they are sampled at",
        "privacy/plan.py",
        "return SampledGaussian(self.sample_rate, ",
        "return SampledGaussian(self.sample_rate / 2, ",
        ("privacy/test_plan.py::test_one_config_feeds_sampling_noise_and_accounting",),
    ),
    Bug(
        2,
        "the sum is divided by the size of the batch drawn, which depends on every record",
        "algorithm/gep.py",
        "/ expected_batch_size, sums.diagnostics",
        "/ max(1, int(sums.diagnostics.records)), sums.diagnostics",
        ("algorithm/test_gep.py::test_the_sum_is_divided_by_the_expected_batch_size_whatever_was_drawn",),
    ),
    Bug(
        2,
        "the batches of an epoch come again in the next",
        "privacy/sampling.py",
        'self._secret.key("poisson", step)',
        'self._secret.key("poisson", step % self.steps_per_epoch)',
        ("privacy/test_sampling.py::test_epochs_do_not_repeat",),
    ),
    Bug(
        2,
        "batches of a fixed size are drawn, and accounted as Poisson samples",
        "privacy/sampling.py",
        "numbers = generator.random(self.num_records)",
        "numbers = generator.permutation(self.num_records) / self.num_records",
        ("privacy/test_sampling.py::test_every_record_is_in_with_probability_q_independently",),
    ),
    Bug(
        2,
        "a batch that would be empty gets a record",
        "privacy/sampling.py",
        "return found",
        "return found or [step % self.num_records]",
        ("privacy/test_sampling.py::test_empty_batches_are_real",),
    ),
    Bug(
        3,
        "the basis follows private gradients",
        "algorithm/gep.py",
        "B = subspace.at_step(step, anchors)",
        "private_gradients = list(private_gradients)\n"
        "    B = subspace.at_step(step, lambda: [*anchors(), *private_gradients])",
        ("algorithm/test_gep.py::test_the_basis_does_not_depend_on_private_gradients",),
    ),
    Bug(
        3,
        "public data may draw on the training data",
        "strategy/public_data.py",
        "if share_records(public, private):",
        "if public is private:",
        (
            "strategy/test_refusals.py::test_public_data_that_is_another_part_of_the_training_data_before_they_were_permuted",
        ),
    ),
    Bug(
        4,
        "embeddings are clipped by the norm of their largest group, not by that of all together",
        "algorithm/gep.py",
        "embedding_norms = row_norms(embeddings)",
        "groups = embeddings.split(basis.dimensions, dim=1)\n"
        "        embedding_norms = torch.stack([row_norms(group) for group in groups]).amax(dim=0)",
        ("algorithm/test_clipping.py::test_one_threshold_for_all_groups_together",),
    ),
    Bug(
        4,
        "the residual comes from the clipped embedding, so it is longer than the norm it is clipped by",
        "algorithm/gep.py",
        "self.embedding_in_residual += residual_factors @ embeddings",
        "self.embedding_in_residual += (residual_factors * embedding_factors) @ embeddings",
        ("algorithm/test_clipping.py::test_the_residual_comes_from_the_unclipped_embedding",),
    ),
    Bug(
        4,
        "the bound on residuals allows for a few eps, not for what the basis lacks in orthonormality",
        "algorithm/clipping.py",
        "+ 2 * embedded * error + basis.defect * embedded**2",
        "+ 4 * torch.finfo(torch.float32).eps",
        ("algorithm/test_clipping.py::test_no_record_contributes_more_than_its_threshold",),
    ),
    Bug(
        5,
        "a gradient that is not finite is multiplied by zero, and 0·NaN is NaN: the record ends the training",
        "algorithm/linalg.py",
        "torch.where(used[:, None], block, 0.0)",
        "block * used[:, None]",
        ("algorithm/test_gep.py::test_a_record_that_is_not_finite_is_as_if_it_were_not_there",),
    ),
    Bug(
        6,
        "a run that is resumed twice draws the same batches twice",
        "strategy/fit.py",
        "Secret(processes.broadcast(Secret().reveal()))",
        "seeded_secret(int(account.run_id, 16))",
        ("strategy/test_resume.py::test_two_resumes_from_one_checkpoint_draw_different_batches_and_noise",),
    ),
    Bug(
        6,
        "noise follows the seed of seed_everything: who knows it can subtract the noise",
        "algorithm/noise.py",
        'np.random.SeedSequence(int.from_bytes(os.urandom(32), "little"), pool_size=8)',
        "np.random.SeedSequence(torch.initial_seed(), pool_size=8)",
        ("algorithm/test_noise.py::test_draws_never_repeat",),
    ),
    Bug(
        6,
        "a checkpoint holds the secret that decides on the batches",
        "strategy/fit.py",
        '"chosen": dict(vars(self.chosen)),',
        '"chosen": dict(vars(self.chosen)),\n            "sampling": self.sampler._secret.reveal().hex(),',
        ("strategy/test_resume.py::test_no_file_of_a_run_contains_the_sampling_secret",),
    ),
    Bug(
        7,
        "the ledger is written every tenth release, to save time: a crash hides up to nine",
        "privacy/account.py",
        "self.ledger.record(self.plan.event, self.steps)",
        "_ = self.steps % 10 or self.ledger.record(self.plan.event, self.steps)",
        ("privacy/test_account.py::test_the_ledger_is_written_before_the_count",),
    ),
    Bug(
        7,
        "a resumed run counts from its checkpoint: steps that were lost in a crash are not counted",
        "privacy/account.py",
        "self.steps = ledger.content.count",
        "self.steps = self.steps or ledger.content.count",
        ("privacy/test_account.py::test_resume_takes_the_larger_of_ledger_and_checkpoint",),
    ),
    Bug(
        7,
        "a second fit begins with a new account",
        "strategy/checkpoints.py",
        "return None if self.prepared is None else Origin(self.prepared.account, self.prepared.state())",
        "return None",
        ("strategy/test_strategy.py::test_epsilon_is_calibrated_to_the_run_and_a_second_fit_continues_the_count",),
    ),
    Bug(
        8,
        "what is logged at the end of a training epoch is published",
        "strategy/logs.py",
        "if hook is None or hook.startswith(EVALUATION):",
        'if hook is None or hook.startswith((*EVALUATION, "on_train_epoch_end")):',
        ("strategy/test_callbacks.py::test_what_later_hooks_and_callbacks_log_in_training_is_dropped_with_a_notice",),
    ),
    Bug(
        8,
        "a callback may decide by the training loss which weights are kept",
        "strategy/refusals.py",
        'monitor.startswith("nonprivate/")',
        'monitor == "nonprivate/"',
        ("strategy/test_refusals.py::test_callbacks_do_not_decide_by_what_is_logged_as_not_private",),
    ),
    Bug(
        8,
        "a run whose noise can be repeated from its seed is reported as private",
        "privacy/account.py",
        '"private": self.private and ',
        '"private": ',
        ("privacy/test_account.py::test_the_report_is_plain_and_marks_what_is_not_private",),
    ),
    Bug(
        9,
        "a collate function may mix records, as MixUp does: one changes the gradients of others",
        "strategy/fit.py",
        "common_lengths(loader.dataset) if check_collate(loader, tried) else None",
        "None",
        ("gradients/test_mixing.py::test_no_mechanism_trains_on_mixed_records",),
    ),
    Bug(
        10,
        "training_step may write what it sees to a buffer, which is released without noise",
        "gradients/state.py",
        "if changed:",
        "if set(changed) & set(dict(module.named_parameters())):",
        ("strategy/test_strategy.py::test_a_step_that_writes_to_parameters_or_buffers_releases_nothing",),
    ),
)


@dataclass(frozen=True)
class Outcome:
    caught_by: str | None
    seconds: float
    output: str


def run_tests(tests: Sequence[str], bug: Bug | None = None) -> Outcome:
    """The tests on a copy of the package, with the bug in it if there is one."""
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        for name in NEEDED:
            copy = shutil.copy if (ROOT / name).is_file() else shutil.copytree
            copy(ROOT / name, Path(directory) / name)
        if bug is not None:
            file = Path(directory) / "lightning_gep" / bug.file
            file.write_text(bug.planted(file.read_text()))
        start = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": directory},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
    failed = re.search(r"^FAILED tests/(.*?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1 and failed is None):
        raise RuntimeError(f"The tests did not run:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return Outcome(failed[1] if failed else None, seconds, done.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, help="the bugs to plant, from 1; all if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many to try at a time")
    parser.add_argument("--verbose", action="store_true", help="also print how the tests failed")
    asked = parser.parse_args(arguments)
    chosen = {number: BUGS[number - 1] for number in asked.numbers or range(1, len(BUGS) + 1)}

    clean = run_tests(list(dict.fromkeys(test for bug in chosen.values() for test in bug.tests)))
    if clean.caught_by is not None:
        print(f"{clean.caught_by} fails without any bug:\n{clean.output[-3000:]}")
        return 2
    print(f"Without a bug all tests pass ({clean.seconds:.0f} s).\n")
    print("| | point | bug | caught by | s |\n|---|---|---|---|---|")
    escaped = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        outcomes = pool.map(lambda bug: run_tests(bug.tests, bug), chosen.values())
        for (number, bug), outcome in zip(chosen.items(), outcomes, strict=True):
            escaped += outcome.caught_by is None
            caught = f"`{outcome.caught_by}`" if outcome.caught_by else "**NOT CAUGHT**"
            print(f"| {number} | {bug.point} | {bug.why} | {caught} | {outcome.seconds:.0f} |", flush=True)
            if asked.verbose:
                print(outcome.output)
    print(f"\n{len(chosen) - escaped} of {len(chosen)} planted bugs are caught.")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
