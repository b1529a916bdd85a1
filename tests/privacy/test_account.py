import json

import pytest

from lightning_gep.errors import BudgetExhaustedError, ConfigurationError, LedgerError
from lightning_gep.privacy.account import PrivacyAccount
from lightning_gep.privacy.accounting import epsilon
from lightning_gep.privacy.ledger import read
from lightning_gep.privacy.plan import PrivacyPlan, check_same_plan
from lightning_gep.privacy.release import GEP, GP


def plan(**change):
    settings = {
        "mechanism": GP(1.0),
        "num_records": 1000,
        "expected_batch_size": 100,
        "delta": 1e-4,
        "epsilon": 3.0,
        "steps": 20,
        "accountant": "rdp",
    }
    return PrivacyPlan.make(**{**settings, **change})


def spent(account, steps):
    for _ in range(steps):
        account.charge()
    return account


def test_what_is_spent_and_what_is_left():
    account = PrivacyAccount(plan())
    assert account.epsilon() == 0.0
    assert account.remaining_epsilon == 3.0
    spent(account, 20)
    exact = epsilon([(account.plan.event, 20)], 1e-4, "rdp")
    assert account.epsilon() == exact
    assert account.remaining_epsilon == pytest.approx(3.0 - exact)
    assert account.epsilon(1e-6) > exact
    assert account.steps == 20


@pytest.mark.parametrize(("accountant", "steps"), [("rdp", 20), ("pld", 3)])
def test_all_planned_steps_fit_and_a_release_beyond_the_target_is_refused_and_not_counted(accountant, steps):
    account = spent(PrivacyAccount(plan(accountant=accountant, steps=steps)), steps)
    with pytest.raises(BudgetExhaustedError, match=rf"after {steps} steps ε is .* would exceed the target of 3"):
        account.charge()
    assert account.steps == steps


def test_the_ledger_is_written_before_the_count(tmp_path):
    account = PrivacyAccount(plan())
    account.open_ledger(tmp_path / "ledger")
    spent(account, 4)
    content = read(tmp_path / "ledger")
    assert content.history == [(account.plan.event, 4)]
    assert PrivacyPlan.from_state(content.parameters["plan"]) == account.plan


def test_resume_takes_the_larger_of_ledger_and_checkpoint(tmp_path):
    account = PrivacyAccount(plan())
    account.open_ledger(tmp_path / "ledger")
    spent(account, 5)
    checkpoint = json.loads(json.dumps(account.state_dict()))
    spent(account, 3)
    account.ledger.close()

    resumed = PrivacyAccount.from_state(checkpoint)
    resumed.resume_ledger(tmp_path / "ledger")
    assert resumed.steps == 8, "three steps were lost with the process, and are spent all the same"
    with pytest.raises(BudgetExhaustedError):
        spent(resumed, 13)
    assert resumed.steps == 20
    resumed.ledger.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"delta": 1e-5, "epsilon": 5.0}, "delta: 0.0001 → 1e-05; .*target_epsilon: 3.0 → 5.0"),
        ({"mechanism": GEP(1.0, 1.0, split="equal"), "k": 5, "num_parameters": 10}, "release: "),
    ],
)
def test_changing_a_privacy_setting_on_resume_is_an_error_that_says_which(change, named):
    with pytest.raises(ConfigurationError, match=named):
        check_same_plan(plan(), plan(**change))


def test_a_ledger_with_other_noise_is_refused(tmp_path):
    first = PrivacyAccount(plan(epsilon=None, noise_multiplier=1.0))
    first.open_ledger(tmp_path / "ledger")
    spent(first, 2).ledger.close()
    second = PrivacyAccount(plan(epsilon=None, noise_multiplier=2.0), run_id=first.run_id)
    with pytest.raises(
        ConfigurationError, match=r"holds 2 releases with .* noise multiplier 1, but this run has 0.1 and 2"
    ):
        second.resume_ledger(tmp_path / "ledger")


def test_the_report_is_plain_and_marks_what_is_not_private():
    for account, private in (
        (PrivacyAccount(plan()), True),
        (PrivacyAccount(plan(), private=False), False),
        (PrivacyAccount(plan(epsilon=None, noise_multiplier=0.0)), False),
    ):
        report = account.report()
        assert report["private"] is private
        assert json.loads(json.dumps(report)) == report
    assert spent(account, 1).epsilon() == float("inf")


def test_a_run_that_can_be_repeated_has_no_epsilon_and_its_budget_is_counted_all_the_same():
    assert PrivacyAccount(plan(epsilon=None, noise_multiplier=1.0, steps=None)).remaining_epsilon is None
    private, seeded = (spent(PrivacyAccount(plan(), private=private), 5) for private in (True, False))
    assert seeded.epsilon() == seeded.epsilon(1e-3) == seeded.report()["epsilon"] == float("inf")
    assert seeded.report()["accounted_epsilon"] == private.report()["accounted_epsilon"] == private.epsilon()
    assert private.epsilon(1e-3) == seeded.accounted_epsilon(1e-3) < private.epsilon()
    assert seeded.remaining_epsilon == private.remaining_epsilon
    for account in (private, seeded):
        with pytest.raises(BudgetExhaustedError, match=r"ε is \d"):
            spent(account, 1000)


@pytest.mark.parametrize("ledger_lost", [True, False])
def test_a_ledger_that_lacks_steps_catches_up_with_the_checkpoint(ledger_lost, tmp_path):
    """Lost, or behind, after two of ten steps; every start since then has made four more and died."""
    account, path = PrivacyAccount(plan(epsilon=None, noise_multiplier=1.0)), tmp_path / "ledger"
    account.open_ledger(path)
    spent(account, 2).close_ledger()
    checkpoint = {**account.state_dict(), "steps": 10}
    if ledger_lost:
        path.unlink()
    for attempt in range(4):
        again = PrivacyAccount.from_state(checkpoint)
        again.open_ledger(path) if ledger_lost and attempt == 0 else again.resume_ledger(path)
        assert again.steps == 10 + 4 * attempt
        spent(again, 4).close_ledger()


@pytest.mark.parametrize("noise", [0.9659, 1.214, 1.977, 2.984])
def test_a_plan_rebuilt_from_its_own_noise_is_the_same_plan(noise):
    """σ is split in two parts and put together again: its last digit may change, what is promised does not."""
    sizes = {"num_records": 1000, "expected_batch_size": 100, "delta": 1e-5, "k": 20, "num_parameters": 6186}
    saved = PrivacyPlan.make(GEP(1.0, 0.5), noise_multiplier=noise, **sizes)
    asked = PrivacyPlan.make(GEP(1.0, 0.5), noise_multiplier=saved.event.noise_multiplier, **sizes)
    check_same_plan(saved, asked)
    other = PrivacyPlan.make(GEP(1.0, 0.5), noise_multiplier=noise * (1 + 1e-6), **sizes)
    with pytest.raises(ConfigurationError, match="release"):
        check_same_plan(saved, other)


def test_marks_of_a_run_survive_a_checkpoint():
    account = PrivacyAccount(plan(), private=False)
    account.trusted = True
    resumed = PrivacyAccount.from_state(json.loads(json.dumps(account.state_dict())))
    assert (resumed.trusted, resumed.private) == (True, False)


def test_only_a_ledger_without_releases_is_discarded_and_a_closed_one_takes_no_more(tmp_path):
    for charges in (0, 1):
        account = PrivacyAccount(plan())
        account.open_ledger(tmp_path / "privacy" / f"{charges}.ledger")
        spent(account, charges).discard_ledger()
        with pytest.raises(LedgerError, match="is closed"):
            account.charge()
        assert account.steps == charges
    assert [path.name for path in (tmp_path / "privacy").iterdir()] == ["1.ledger"]
