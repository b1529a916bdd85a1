"""What a step with a basis costs is estimated before the first one, and the setting that costs it is named."""

import pytest
import torch

from lightning_gep.strategy.settings import CostSettings
from lightning_gep.strategy.step_cost import seconds_of_product, slow_parts
from tests.toys import Classifier, loader, strategy, trainer

BLOCKS = [(10, 1000), (20, 4000)]
"""90 000 numbers: of 100 records with gradients of 1 ms, 9 ms are for projecting at 1 ns a product."""


@pytest.mark.parametrize(
    ("settings", "product", "said"),
    [
        ({}, 1e-9, ""),
        ({}, 1e-7, "about 68 × the time of its gradients: projecting on k=30 vectors 9 ×, refreshing the basis 58 ×"),
        ({"refresh_every": 100}, 1e-7, "about 11 × the time of its gradients: projecting on k=30 vectors 9 ×; lower k"),
        ({"num_anchors": 1000}, 1e-9, "refreshing the basis 69 ×; refresh_every=4 makes it faster"),
        (
            {"subspace": "power"},
            0.0,
            "about 21 × the time of its gradients: refreshing the basis 20 ×; refresh_every=4",
        ),
    ],
)
def test_the_setting_that_costs_much_is_named(settings, product, said):
    words = slow_parts(CostSettings(**settings), BLOCKS, records=100, per_record=1e-3, product=product)
    assert said in words
    assert bool(said) == bool(words)


def test_it_is_told_at_the_start_of_a_fit_and_leaves_random_states_alone(tmp_path, caplog):
    def block(**settings):
        caplog.clear()
        with caplog.at_level("INFO", logger="lightning.pytorch"):
            trainer(tmp_path, strategy(**settings), max_steps=1).fit(Classifier(), loader())
        return next(record.message for record in caplog.records if record.message.startswith("GEPStrategy"))

    assert "refreshing the basis" in block(num_anchors=1000)
    assert "its gradients" not in block(mechanism="gp")
    before = torch.get_rng_state()
    assert 0 < seconds_of_product(4, 8, torch.zeros(0)) < 1e-3
    assert torch.equal(torch.get_rng_state(), before)
