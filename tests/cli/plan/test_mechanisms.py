import pytest

from lightning_gep.cli.plan.command import main

SMALL = ["mechanism.k=20", "trainer.max_epochs=2", "privacy.accountant=rdp"]


def test_mechanisms_are_compared_on_public_gradients(capsys):
    main([*SMALL, "--compare"])
    printed = capsys.readouterr().out
    lines = [line.split("│")[1:3] for line in printed.splitlines() if line.startswith("│ ")]
    found = {name.strip(): float(value) for name, value in lines if name.strip() in ("gp", "gep", "bgep", "spectral")}
    levels = {name: value for name, value in found.items() if value}
    assert levels.keys() == {"gp", "gep", "bgep", "spectral"}
    assert list(levels.values()) == sorted(levels.values())
    assert levels["spectral"] < levels["gp"], "its noise is shaped like the gradients"
    assert "B-GEP's figure leaves out its bias" in " ".join(printed.split())


@pytest.mark.parametrize("other", [["--records", "100"], ["--parameters", "100"]])
def test_a_comparison_needs_the_model_and_its_public_data(other, capsys):
    with pytest.raises(SystemExit):
        main([*SMALL, "--compare", *other])
    assert "leave out --records, --parameters" in capsys.readouterr().err
