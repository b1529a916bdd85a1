"""The promise: (ε, δ)-differential privacy for one training record, added or removed.

It covers the released weights and everything computed from them, and rests on ten points. Each names the functions
that keep it and a test that fails without them. Nothing in this folder imports torch or Lightning.

1. One sampled Gaussian per step: both parts are released on the same Poisson subsample, so a step is one subsampled
   Gaussian with 1/σ² = 1/σ₁² + 1/σ₂² (separate clipping) or σ = σ₁ = σ₂ (joint).
   Kept by `privacy.release.Release.noise_multiplier`, `privacy.accounting.SampledGaussian`.
   Test: tests/algorithm/test_clipping.py::test_the_worst_shift_in_units_of_the_noise_is_one_over_the_accounted_sigma
2. Poisson sampling at rate q = n̄/N, empty batches included; sums are divided by the fixed n̄.
   Kept by `privacy.sampling.PoissonSampler.draw`, `algorithm.gep.gradient_embedding_perturbation`.
   Test: tests/privacy/test_sampling.py::test_every_record_is_in_with_probability_q_independently
3. The basis is public: it depends on public data and released weights, and public data shares no training record.
   Kept by `algorithm.gep.gradient_embedding_perturbation`, `strategy.public_data.check_public_data`.
   Test: tests/algorithm/test_gep.py::test_the_basis_does_not_depend_on_private_gradients
4. Clipping bounds hold in floating point.
   Kept by `algorithm.clipping.residual_norm_bound`, `algorithm.clipping.clip_factors`.
   Test: tests/algorithm/test_clipping.py::test_no_record_contributes_more_than_its_threshold
5. A record whose gradient is not finite contributes zero.
   Kept by `algorithm.linalg.weighted_sum`.
   Test: tests/algorithm/test_gep.py::test_a_record_that_is_not_finite_is_as_if_it_were_not_there
6. Sampling and noise are fresh and secret: drawn at every process start, never saved, never repeated.
   Kept by `privacy.sampling.Secret`, `algorithm.noise.SystemNoise`.
   Test: tests/privacy/test_sampling.py::test_a_secret_cannot_be_seen_saved_or_copied
7. Every release is recorded on disk before its noise is drawn, and refused beyond the target ε.
   Kept by `privacy.account.PrivacyAccount.charge`, `privacy.ledger.Ledger.record`.
   Test: tests/privacy/test_account.py::test_the_ledger_is_written_before_the_count
8. What ε does not cover is dropped or says so: training logs, monitors on them, and the card.
   Kept by `strategy.logs.LogGuard`, `strategy.refusals.check_monitors`, `privacy.card.content.not_covered`.
   Test: tests/strategy/test_callbacks.py::test_what_later_hooks_and_callbacks_log_in_training_is_dropped_with_a_notice
9. No record mixes with another before clipping.
   Kept by `gradients.isolation.check_records_apart`.
   Test: tests/gradients/test_mixing.py::test_no_mechanism_trains_on_mixed_records
10. Only gradients leave `training_step`: a buffer that it changes is refused.
    Kept by `gradients.state.state_unchanged`.
    Test: tests/strategy/test_strategy.py::test_a_step_that_writes_to_parameters_or_buffers_releases_nothing
"""
