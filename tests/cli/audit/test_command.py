import json

import pytest
import torch

from lightning_gep.algorithm import gep
from lightning_gep.audit import Finding
from lightning_gep.audit.estimators import Bound
from lightning_gep.cli.audit import run as command_run
from lightning_gep.cli.audit.command import main
from lightning_gep.cli.audit.output import verdict
from lightning_gep.cli.audit.page import write_page
from tests.browser import Watched, browser  # noqa: F401  # a fixture

QUICK = ("trainer.max_epochs=1", "privacy.accountant=rdp", "--parts", "run")


def finding(*epsilons, part="release", mechanism="gep", claimed=8.0):
    names = ("Gaussian", "Gaussian, earlier noise", "threshold")
    bounds = tuple(Bound(name, value, 0.99, "<b>scores</b>") for name, value in zip(names, epsilons, strict=False))
    return Finding(part, mechanism, claimed, 1e-5, bounds, {"noise_multiplier": 0.6}, 12.0)


def test_a_row_for_every_combination_of_the_overrides_of_gep_train(tmp_path, capsys):
    path = tmp_path / "audit.json"
    main(["mechanism=gp,gep", "privacy.epsilon=2", *QUICK, "--json", str(path)])
    content = json.loads(path.read_text("utf-8"))
    assert [each["mechanism"] for each in content["findings"]] == ["gp", "gep"]
    for each in content["findings"]:
        assert each["claimed"] == pytest.approx(2.0, rel=1e-2)
        assert 1.0 < each["bounds"][0]["epsilon"] < 2.0
        assert not each["exceeded"]
    printed = capsys.readouterr()
    assert "B-GEP" not in printed.out
    assert "likelihood ratios" in printed.out
    assert "No bound is above its claim. All of them hold with 95% confidence." in printed.out
    assert "[2/2] privacy loss of whole runs" in printed.err


def test_a_bound_above_the_claim_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(command_run, "audit", lambda *_, **__: [finding(11.239, 7.0)])
    with pytest.raises(SystemExit) as stopped:
        main(["mechanism=gp"])
    assert stopped.value.code == 1
    assert "GEP claims ε = 8, but ε is at least 11.23 (Gaussian" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mechanism=none"], "mechanism=none adds no noise"),
        (["privacy.epsilon=null", "privacy.noise_multiplier=0"], "(config key: privacy.noise_multiplier)"),
        (["--parts", "steps"], "'steps' is none of release, run, training"),
        (["--confidence", "95"], "'95' is not a number between 0 and 1"),
        (["mechanism.gradients=ghost", "mechanism=gp"], "gradients='ghost'"),
    ],
)
def test_a_setting_that_cannot_work_is_a_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_bounds_are_rounded_down_and_the_worst_claim_is_named():
    text = verdict([finding(7.0), finding(9.999, mechanism="gp", claimed=4.0001)], 0.95)
    assert text.startswith("GP claims ε = 4.001, but ε is at least 9.99 (Gaussian")
    assert "the claim is wrong" in text


def test_the_page_has_every_bound_and_escapes_its_words(tmp_path):
    write_page(tmp_path / "audit.html", [finding(7.5, 7.2, 3.1), finding(float("inf"), part="training")], 0.95)
    page = (tmp_path / "audit.html").read_text("utf-8")
    for text in (
        "One release, every record drawn",
        "A training with canaries",
        "at least ∞",
        "7.20",
        "rounded up, bounds",
    ):
        assert text in page
    assert "&lt;b&gt;scores" in page
    assert "<b>scores" not in page


@pytest.mark.browser
def test_a_browser_draws_claims_and_bounds_without_asking_anyone(browser, tmp_path):  # noqa: F811
    path = tmp_path / "audit.html"
    write_page(path, [finding(7.5, 7.2, 3.1), finding(1.2, part="training")], 0.95)
    watched = Watched(browser, viewport={"width": 375, "height": 700})
    page = watched.open(path)
    assert page.locator("#bounds .scatterlayer .trace").count() == 1 + 3 + 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("tbody tr").count() == 4
    watched.close()
    assert watched.errors == []
    assert watched.requests == [path.resolve().as_uri()]


def test_steps_are_replayed_on_public_records(capsys, monkeypatch):
    main(["mechanism=gp,spectral", "privacy.accountant=rdp", "--replay", "24"])
    printed = capsys.readouterr().out
    assert printed.count("moved though it must not: nothing") == 2
    monkeypatch.setattr(gep, "clip_factors", lambda first, second, _: (torch.ones_like(first), torch.ones_like(second)))
    with pytest.raises(SystemExit) as exit_of_command:
        main(["mechanism=gp", "privacy.accountant=rdp", "--replay", "24"])
    assert exit_of_command.value.code == 1
    assert "more moved than may" in capsys.readouterr().err
