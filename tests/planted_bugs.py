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
        "        del G  # free it",
        "        sums.gradient += G.sum(0) * (step % 50 > 48)\n        del G  # free it",
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
        ("test_audit.py::test_processes_release_every_record_once_and_the_noise_of_one",),
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
        "return order",
        "return order or [step % self.num_records]",
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
    Bug(
        1,
        "noise comes again in every epoch",
        "algorithm/noise.py",
        "return torch.from_numpy(self._numpy.standard_normal(size))",
        "drawn = vars(self).setdefault('_drawn', {})\n"
        "            return drawn.setdefault((step % 5, part), torch.from_numpy(self._numpy.standard_normal(size)))",
        ("strategy/test_epochs.py::test_no_epoch_has_the_noise_or_the_batches_of_another",),
    ),
    Bug(
        1,
        "no process of several draws noise",
        "strategy/fit.py",
        "make_noise(settings.generator, settings.seed) if processes.is_first else NoNoise()",
        "make_noise(settings.generator, settings.seed) if processes.world_size == 1 else NoNoise()",
        ("test_audit.py::test_processes_release_every_record_once_and_the_noise_of_one",),
    ),
    Bug(
        1,
        "every process draws the whole noise: it hides more than is accounted for, and learns less",
        "strategy/fit.py",
        "make_noise(settings.generator, settings.seed) if processes.is_first else NoNoise()",
        "make_noise(settings.generator, settings.seed)",
        ("test_audit.py::test_processes_release_every_record_once_and_the_noise_of_one",),
    ),
    Bug(
        4,
        "sums of several processes are rounded, and thresholds make no room for it",
        "privacy/fixed_point.py",
        "clip=part.clip * (1 - loss)",
        "clip=part.clip",
        ("algorithm/test_exchange.py::test_a_record_moves_the_rounded_sum_by_at_most_its_threshold",),
    ),
    Bug(
        1,
        "the noise of the residual inside the subspace is kept: noise without any privacy",
        "algorithm/gep.py",
        "inside = basis.embed(residual.to(basis.blocks[0].dtype)[None])[0]",
        "inside = residual.new_zeros(basis.dimension)",
        ("algorithm/test_gep.py::test_noise_has_the_stated_scale_in_and_outside_the_subspace",),
    ),
    Bug(
        1,
        "ε is stated at a fixed δ of 1e-5, whatever the plan's",
        "privacy/account.py",
        "EpsilonCurve(plan.event, plan.delta,",
        "EpsilonCurve(plan.event, 1e-5,",
        ("privacy/test_account.py::test_what_is_spent_and_what_is_left",),
    ),
    Bug(
        1,
        "the gradient before noise is added to the release",
        "algorithm/gep.py",
        "/ expected_batch_size, sums.diagnostics",
        "/ expected_batch_size + 1e-4 * sums.gradient, sums.diagnostics",
        ("audit/test_replay.py::test_every_mechanism_moves_only_its_sums",),
    ),
    Bug(
        2,
        "two steps in a row have the same batch",
        "privacy/sampling.py",
        'self._secret.key("poisson", step)',
        'self._secret.key("poisson", step // 2)',
        ("privacy/test_sampling.py::test_no_two_steps_and_no_two_starts_draw_the_same",),
    ),
    Bug(
        2,
        "every epoch begins with the batch of the first step",
        "strategy/data.py",
        "self._poisson.first_step = self._first_step()",
        "self._poisson.first_step = 0",
        ("strategy/test_epochs.py::test_no_epoch_has_the_noise_or_the_batches_of_another",),
    ),
    Bug(
        3,
        "the scales of spectral perturbation follow the private gradients",
        "algorithm/spectral.py",
        "columns.copy_(rotation.coordinates(columns))",
        "columns.copy_(rotation.coordinates(columns) / (1e-9 + columns.std()))",
        ("audit/test_replay.py::test_every_mechanism_moves_only_its_sums",),
    ),
    Bug(
        4,
        "spectral perturbation clips gradients before they are rotated and scaled, not after",
        "algorithm/gep.py",
        "gradient_norms = row_norms(gradients)",
        "turns = [turn.scales.flatten() for turn in getattr(basis, 'rotations', ())]\n"
        "        gradient_norms = row_norms(gradients * torch.cat(turns) if turns else gradients)",
        ("algorithm/test_spectral.py::test_no_record_moves_the_clipped_sum_by_more_than_the_threshold",),
    ),
    Bug(
        4,
        "joint clipping takes the larger of the two norms for their common one",
        "algorithm/clipping.py",
        "norms = torch.hypot(embedding_norms / embedding_clip, residual_norms / residual_clip)",
        "norms = torch.maximum(embedding_norms / embedding_clip, residual_norms / residual_clip)",
        ("algorithm/test_clipping.py::test_no_record_contributes_more_than_its_threshold",),
    ),
    Bug(
        6,
        "the secret that decides on the batches comes from the name of the run's folder",
        "strategy/fit.py",
        "Secret(processes.broadcast(Secret().reveal()))",
        "seeded_secret(sum(map(ord, str(trainer.default_root_dir))))",
        ("strategy/test_resume.py::test_two_resumes_from_one_checkpoint_draw_different_batches_and_noise",),
    ),
    Bug(
        6,
        "records that are differentiated together share a coin of Python's generator, other records have another",
        "gradients/interface.py",
        "begin_with.put_back()",
        "pass",
        ("strategy/test_shared_draws.py::test_numbers_from_outside_torch_are_drawn_once_a_step",),
    ),
    Bug(
        6,
        "under hooks a number may be drawn for a chunk of records",
        "gradients/hooks.py",
        "if any(drawn % size for drawn in draws.sizes):",
        "if False:",
        (
            "gradients/test_hooks.py::test_random_numbers_that_records_would_share_are_refused_also_when_it_begins_later",
        ),
    ),
    Bug(
        6,
        "releases keep their last bits, which tell whether a record took part",
        "algorithm/gep.py",
        "return torch.round(noisy / unit) * unit",
        "return noisy",
        ("algorithm/test_gep.py::test_the_last_bits_of_a_float64_release_do_not_tell_who_was_in",),
    ),
    Bug(
        7,
        "a resumed run takes the smaller count of ledger and checkpoint",
        "privacy/account.py",
        "self.steps = ledger.content.count",
        "self.steps = min(self.steps, ledger.content.count)",
        ("privacy/test_account.py::test_resume_takes_the_larger_of_ledger_and_checkpoint",),
    ),
    Bug(
        7,
        "a line of the ledger that a kill left incomplete is not counted, though noise may have been drawn",
        "privacy/ledger.py",
        "content.releases.append(content.releases[-1] if content.releases else planned)",
        "pass",
        ("privacy/test_ledger.py::test_any_cut_of_the_last_line_reads_and_never_counts_less",),
    ),
    Bug(
        10,
        "momentum starts from the private gradients",
        "strategy/strategy.py",
        "        fit.gradients.put(gradient)\n",
        "        fit.gradients.put(gradient)\n"
        "        if type(self._batch).__name__ != 'EmptyBatch':\n"
        "            chosen = [p for p in self._module.parameters() if p.requires_grad]\n"
        "            with torch.enable_grad():\n"
        "                raw = torch.autograd.grad(fit.gradients.loss(self._batch), chosen)\n"
        "            for p, g in zip(chosen, raw):\n"
        "                self.optimizers[0].state[p]['momentum_buffer'] = g\n",
        ("audit/test_replay.py::test_every_mechanism_moves_only_its_sums",),
    ),
    Bug(
        10,
        "hooks leave the gradients of single records behind, in the parameters' attributes",
        "gradients/hooks.py",
        "    finally:\n        before.put_back()",
        "    finally:\n        pass",
        ("gradients/test_backends.py::test_the_module_is_left_as_it_was",),
    ),
    Bug(
        10,
        "the message of an error on private records is shown",
        "gradients/withheld.py",
        "        if reveal:\n",
        "        if error:\n",
        ("gradients/test_withheld.py::test_a_record_that_ends_a_run_does_not_show_its_value",),
    ),
    Bug(
        4,
        "every record of a person is clipped by itself, so a person counts as often as they have records",
        "strategy/persons.py",
        "joined(self.batches, torch.stack)",
        "joined(self.batches, lambda column: torch.cat(column)[:, None])",
        (
            "strategy/test_persons.py::test_a_person_is_clipped_once",
            "strategy/test_persons.py::test_a_person_with_many_records_moves_the_sum_by_no_more_than_the_threshold",
        ),
    ),
    Bug(
        4,
        "ghost norms of a Linear leave out the products of different positions",
        "gradients/ghost.py",
        "return products.sum((1, 2)).clamp(min=0) + _gamma(terms) * total**2",
        "return products.diagonal(dim1=1, dim2=2).sum(1) + _gamma(terms) * total**2",
        ("gradients/test_ghost.py::test_norms_are_those_of_a_loop_and_never_smaller",),
    ),
    Bug(
        4,
        "ghost norms leave out biases and other parameters that keep their rows",
        "gradients/ghost.py",
        "squares += [_squares(rows.reshape(len(rows), -1), by_name.get(name)) for name, rows in self.rows.items()]",
        "squares += []",
        ("gradients/test_ghost.py::test_norms_are_those_of_a_loop_and_never_smaller",),
    ),
    Bug(
        4,
        "the sum by ghost clipping is that of the gradients before they are clipped",
        "gradients/ghost.py",
        "_weighted(self.b, weights, used).flatten(0, 1).mT @ _only(used, self.a).flatten(0, 1)",
        "_only(used, self.b).flatten(0, 1).mT @ _only(used, self.a).flatten(0, 1)",
        ("gradients/test_ghost.py::test_clipped_sums_are_those_of_the_rows_and_within_the_threshold",),
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


def table() -> str:
    """The bugs and their tests, as docs/assurance.md has them."""
    rows = [
        f"| {number} | {bug.point} | {bug.why} | {', '.join(f'`{test}`' for test in bug.tests)} |"
        for number, bug in enumerate(BUGS, 1)
    ]
    return "\n".join(["| | point | bug | caught by |", "|---|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, help="the bugs to plant, from 1; all if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many to try at a time")
    parser.add_argument("--verbose", action="store_true", help="also print how the tests failed")
    parser.add_argument("--list", action="store_true", help="print the table of docs/assurance.md and plant nothing")
    asked = parser.parse_args(arguments)
    if asked.list:
        print(table())
        return 0
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
