import json
import math
import shutil

import numpy as np
import pytest
from scipy.stats import norm

from recipes.pate.__main__ import main
from recipes.pate.accounting import ORDERS, budget_for, gaussian_rdp
from recipes.pate.page import FOLDER, section
from recipes.pate.voting import Voting, ask, probability_of_an_answer, probability_of_another
from tests import data_files

VOTING = Voting(threshold=200, check_noise=150, vote_noise=40)


def test_one_teacher_moves_what_is_checked_by_one_and_what_is_answered_by_the_root_of_two():
    before, after = np.array([150, 80, 20]), np.array([149, 80, 21])
    assert abs(int(before.max()) - int(after.max())) == 1
    shift = np.linalg.norm(before - after)
    assert VOTING.cost_of_answer == pytest.approx((shift / VOTING.vote_noise) ** 2)
    assert VOTING.cost_of_check == pytest.approx((1 / VOTING.check_noise) ** 2)


def test_queries_end_before_the_budget_does():
    votes = [np.array([250, 0])] * 1000
    budget = budget_for(2.0, 1e-5)
    answers = ask(votes, VOTING, budget)
    assert 0 < answers.queries < 1000
    assert answers.cost(VOTING) <= budget < answers.cost(VOTING) + VOTING.cost_of_check + VOTING.cost_of_answer
    assert answers.cost(VOTING) == pytest.approx(
        answers.queries * VOTING.cost_of_check + len(answers.answered) * VOTING.cost_of_answer
    )


def test_checks_and_answers_have_the_noise_they_are_charged_for():
    """Shares of 20 000 queries, within six standard errors; half or √2 of the noise would be outside."""
    count = 20_000
    votes = [np.array([140, 110])] * count
    answers = ask(votes, VOTING, budget=math.inf)
    clear = 1 - norm.cdf((200 - 140) / 150)
    assert len(answers.answered) / count == pytest.approx(clear, abs=6 * math.sqrt(clear * (1 - clear) / count))
    assert probability_of_an_answer(votes[0], VOTING) == pytest.approx(clear)
    first = norm.cdf(30 / (40 * math.sqrt(2)))
    said = [answers.labels[query] for query in answers.answered]
    error = math.sqrt(first * (1 - first) / len(said))
    assert said.count(0) / len(said) == pytest.approx(first, abs=6 * error)
    assert abs(norm.cdf(30 / 40) - first) > 9 * error, "the test tells σ√2 from σ"


@pytest.mark.parametrize("counts", [(250, 0), (200, 50), (160, 90), (130, 120)])
@pytest.mark.parametrize("noise", [20.0, 40.0])
def test_the_cost_of_given_votes_is_never_below_the_true_divergence(counts, noise):
    """Between two classes the mechanism is a coin, whose Rényi divergence to its neighbours' can be written down."""

    def coin(first, second):
        return norm.cdf((first - second) / (noise * math.sqrt(2))), norm.cdf((second - first) / (noise * math.sqrt(2)))

    bound = gaussian_rdp(probability_of_another(np.array(counts), noise), noise)
    assert (bound <= ORDERS / noise**2).all()
    here = coin(*counts)
    for neighbour in (coin(counts[0] - 1, counts[1] + 1), coin(counts[0] + 1, counts[1] - 1)):
        logs = [ORDERS * math.log(p) + (1 - ORDERS) * math.log(q) for p, q in zip(here, neighbour, strict=True)]
        true = np.logaddexp(*logs) / (ORDERS - 1)
        assert (true <= bound + 1e-12).all()


@pytest.mark.slow
def test_the_command_runs_and_says_which_figures_are_private_themselves(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("recipes.pate.__main__.TEACHER_STEPS", 3)
    monkeypatch.setattr("recipes.pate.__main__.STUDENT_STEPS", 3)
    data_files.write_mnist(
        tmp_path / "MNIST" / "raw", test=1000
    )  # that none of 200 queries is answered has a chance of 1e-17
    words = ["--data-directory", str(tmp_path), "--teachers", "4", "--epsilon", "9000", "--students", "1"]
    main([*words, "--output", str(tmp_path / "out")])
    assert "which is private itself" in capsys.readouterr().out
    figures = json.loads((tmp_path / "out" / "mnist.json").read_text())
    (row,) = figures["rows"]
    assert row["epsilon"] <= 9000
    assert "nonprivate_majority" in figures
    assert 0 <= row["test_accuracy"] <= 1
    shutil.move(tmp_path / "out", tmp_path / FOLDER)
    lines = section(tmp_path)
    assert lines[0] == "## PATE"
    assert lines[-2].startswith("| MNIST, ε = 9000, 4 teachers | – | ")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--teachers", "0"], "teachers must be"), (["--epsilon", "-1"], "--epsilon -1 must be above 0")],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--data-directory", str(tmp_path), *words])
    assert message in capsys.readouterr().err
