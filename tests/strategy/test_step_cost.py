"""What a step with a basis costs is estimated before the first one, and the setting that costs it is named."""

import pytest
import torch

from lightning_gep.strategy.settings import CostSettings
from lightning_gep.strategy.step_cost import StepCost, seconds_of_product
from tests.toys import Classifier, loader, strategy, trainer

BLOCKS = [(10, 1000), (20, 4000)]
NUMBERS = 10 * 1000 + 20 * 4000


def estimate(records=100, per_record=1e-3, product=1e-9, **settings):
    return StepCost.estimated(CostSettings(**settings), BLOCKS, records=records, per_record=per_record, product=product)


def test_records_are_projected_and_anchors_differentiated_at_every_refresh():
    found = estimate()
    assert found.gradients == pytest.approx(100 * 1e-3)
    assert found.projection == pytest.approx(100 * NUMBERS * 1e-9)
    assert found.refresh == pytest.approx(50 * 1e-3 + (50 * 10 * NUMBERS + 50**2 * 5000) * 1e-9)
    assert estimate(refresh_every=4).refresh == pytest.approx(found.refresh / 4)
    assert estimate(subspace="power").refresh > 2000 * 1e-3
    assert found.ratio == pytest.approx(1 + (found.projection + found.refresh) / found.gradients)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((1.0, 1.5, 1.4), ""),
        ((1.0, 8.0, 0.2), "about 9.2 × the time of its gradients: projecting on k=30 vectors 8 ×; lower k makes"),
        ((1.0, 0.2, 8.0), "about 9.2 × the time of its gradients: refreshing the basis 8 ×; refresh_every=4 makes"),
        ((2.0, 8.0, 6.0), "projecting on k=30 vectors 4 ×, refreshing the basis 3 ×; lower k or refresh_every=4 makes"),
        ((0.0, 1.0, 0.0), "lower k makes"),
    ],
)
def test_the_setting_that_costs_much_is_named(parts, said):
    words = StepCost(*parts).in_words(30, CostSettings())
    assert said in words
    assert bool(said) == bool(words)


def test_it_is_told_at_the_start_of_a_fit_and_leaves_random_states_alone(tmp_path, caplog):
    def block(**settings):
        caplog.clear()
        with caplog.at_level("INFO", logger="lightning.pytorch"):
            trainer(tmp_path, strategy(**settings), max_steps=1).fit(Classifier(), loader())
        return next(record.message for record in caplog.records if record.message.startswith("GEPStrategy"))

    assert "refreshing the basis" in block(num_anchors=1000)
    assert "refresh_every=400" not in block(num_anchors=1000, refresh_every=100)
    assert "its gradients" not in block(mechanism="gp")
    before = torch.get_rng_state()
    assert 0 < seconds_of_product(4, 8, torch.zeros(0)) < 1e-3
    assert torch.equal(torch.get_rng_state(), before)
