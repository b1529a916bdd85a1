"""Privacy for persons: one clip for all records of a person, against a loop over persons and records."""

import json
import pickle
import traceback

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

from lightning_gep import ConfigurationError, PerPerson
from lightning_gep.privacy import ledger
from lightning_gep.strategy.persons import Persons
from tests.toys import CLASSES, FEATURES, Classifier, strategy, trainer, weights

CLIP, RECORDS = 0.3, 4
COUNTS = (1, 2, 4, 4, 2, 1, 1, 4)
"""Each divides `RECORDS`, so a person's mean over so many draws is that over all their records."""


class OfPersons(Classifier):
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch["x"]), batch["y"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def records(counts=COUNTS, seed=1):
    """Records of persons in mixed order: whose they are is an entry of each."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.tensor([person for person, count in enumerate(counts) for _ in range(count)])
    made = []
    for person in owners[torch.randperm(len(owners), generator=generator)].tolist():
        y = int(torch.randint(CLASSES, (), generator=generator))
        made.append({"x": torch.randn(FEATURES, generator=generator) + y, "y": y, "user_id": person})
    return made


def public_loader():
    return DataLoader(records((1,) * 40, seed=9), batch_size=20)


def fitted(directory, data, **settings):
    module, persons = OfPersons(), PerPerson(data, "user_id", records=RECORDS)
    private = {"mechanism": "gp", "noise_multiplier": 0.0, "clip_norm": CLIP, **settings}
    private.setdefault("aux_dataloader", public_loader())
    run = trainer(directory, strategy(**private), max_epochs=1)
    run.fit(module, DataLoader(persons, batch_size=len(persons), shuffle=True))
    return module, run


def released_sum(module, persons):
    """What a step without noise and with learning rate 1 has taken from the weights, times n̄."""
    return (weights(OfPersons()) - weights(module)) * persons


def slow_sum(data, clip=CLIP):
    """Σ over persons of clip(mean of the gradients of their records), by backward on one record at a time."""
    module, rows = OfPersons(), {}
    for record in data:
        module.zero_grad()
        nn.functional.cross_entropy(module(record["x"][None]), torch.tensor([record["y"]])).backward()
        row = torch.cat([p.grad.flatten() for p in module.parameters()])
        rows.setdefault(record["user_id"], []).append(row)
    means = [torch.stack(own).mean(0) for own in rows.values()]
    return sum(mean * min(1.0, clip / mean.norm().item()) for mean in means)


@pytest.mark.parametrize("gradients", ["functional", "ghost", "loop"])
def test_a_person_is_clipped_once(tmp_path, gradients):
    data = records()
    module, _ = fitted(tmp_path, data, gradients=gradients)
    torch.testing.assert_close(released_sum(module, len(COUNTS)), slow_sum(data), rtol=2e-3, atol=1e-4)


def test_a_person_with_many_records_moves_the_sum_by_no_more_than_the_threshold(tmp_path):
    data, person = records(), len(COUNTS)
    own = [{"x": torch.full((FEATURES,), 5.0 + i / 9), "y": 0, "user_id": person} for i in range(9)]
    without, _ = fitted(tmp_path / "without", data)
    together, _ = fitted(tmp_path / "with", data + own)
    moved = released_sum(together, person + 1) - released_sum(without, person)
    assert 0.9 * CLIP < moved.norm() <= CLIP * (1 + 1e-4)


@pytest.mark.parametrize("mechanism", ["gep", "spectral"])
def test_the_guarantee_counts_persons_and_says_so(tmp_path, mechanism):
    settings = {"mechanism": mechanism, "noise_multiplier": 1.0, "generator": "system"}
    _, run = fitted(tmp_path, records(), **settings)
    plan = run.strategy.privacy.plan
    assert (plan.num_records, plan.sample_rate, plan.unit) == (len(COUNTS), 1.0, "person (user_id)")
    content = ledger.read(next(tmp_path.rglob("*.ledger")))
    assert content.parameters["plan"]["unit"] == "person (user_id)"
    card = json.loads(next(tmp_path.rglob("privacy_card.json")).read_text())
    assert card["guarantee"]["unit"] == "one person (user_id) with all their records"
    assert "for one person (user_id) with all their records, added or removed" in card["guarantee"]["statement"]
    assert (card["sampling"]["records"], card["sampling"]["counted"]) == (len(COUNTS), "persons")


def test_records_of_a_person_are_chosen_evenly_and_anew():
    torch.manual_seed(0)
    by_position = PerPerson([(torch.zeros(2), torch.tensor(i // 2)) for i in range(6)], 1)
    assert len(by_position) == 3
    persons = PerPerson([{"user_id": i % 2, "i": i} for i in range(12)], "user_id", records=8)
    assert len(persons) == 2
    chosen = [sorted(record["i"] for record in persons[0]) for _ in range(20)]
    assert all(set(own) == {0, 2, 4, 6, 8, 10} and max(map(own.count, own)) == 2 for own in chosen)
    assert len(set(map(tuple, chosen))) > 1


@pytest.mark.parametrize("owner", [None, float("nan"), torch.tensor(float("nan")), [1, 2], object()])
def test_a_record_of_nobody_is_refused(owner):
    with pytest.raises(ConfigurationError, match="user_id"):
        PerPerson([{"user_id": 1}, {"user_id": owner}], "user_id")


def test_persons_inside_of_another_dataset_are_refused(tmp_path):
    """A person in two parts of a ConcatDataset would count as two, on a card that names records."""
    halves = [PerPerson(data, "user_id") for data in (records(), records(seed=2))]
    for data in (ConcatDataset(halves), Subset(halves[0], [0, 1, 2]), Subset(ConcatDataset(halves), [0, 5, 9])):
        run = trainer(tmp_path, strategy(mechanism="gp"))
        with pytest.raises(ConfigurationError, match="in which a person could be twice"):
            run.fit(OfPersons(), DataLoader(data, batch_size=2, shuffle=True))


def test_a_name_that_an_error_tells_is_not_shown():
    with pytest.raises(ConfigurationError, match=r"does not tell whose record 0 is \(KeyError\)") as raised:
        PerPerson([{"name": " ".join(("John", "Smith"))}], unit=lambda record: {}[record["name"]])
    assert "John Smith" not in "".join(traceback.format_exception(raised.value))


def test_what_is_done_to_a_batch_meets_one_person_at_a_time():
    persons = Persons([torch.arange(3) + 10 * person for person in range(2)])
    assert persons.each(lambda own: own.flip(0)).nested().tolist() == [[2, 1, 0], [12, 11, 10]]
    with pytest.raises(ConfigurationError, match="tensors"):
        Persons([["a", "b"], ["c", "d"]]).nested()
    for constant, other in (("a", "b"), (torch.tensor(1.0), torch.tensor(1 + 1e-6))):  # the first would count for all
        with pytest.raises(ConfigurationError, match="adds a value that depends on the records"):
            Persons([(torch.zeros(2), constant), (torch.zeros(2), other)]).nested()


def test_what_is_read_of_a_person_does_not_follow_from_a_known_seed():
    """Nor from who else was drawn: with torch's generator one person more would change the records of all others."""
    persons = PerPerson([{"user_id": i % 2, "x": i} for i in range(2000)], unit="user_id", records=20)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = persons[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert persons[0] != first


class Validates(OfPersons):
    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.training_step(batch, batch_idx))


def test_validation_on_other_records_of_the_same_persons_is_refused(tmp_path):
    """They have no noise: whoever is in the training data would show in what validation says."""
    whole = records((4,) * 12)
    by_record = (whole[::2], whole[1::2])
    by_person = ([r for r in whole if r["user_id"] < 9], [r for r in whole if r["user_id"] >= 9])
    nobodys = [{"x": r["x"], "y": r["y"]} for r in by_record[1]]

    def fit(training, validation):
        train = DataLoader(PerPerson(training, lambda record: record["user_id"]), batch_size=4, num_workers=0)
        run = trainer(tmp_path, strategy(mechanism="gp", aux_dataloader=public_loader()), max_steps=1)
        run.fit(Validates(), train, DataLoader(validation, batch_size=4))

    with pytest.raises(ConfigurationError, match="records of persons in the training data"):
        fit(*by_record)
    with pytest.raises(ConfigurationError, match="records of persons in the training data"):
        fit(by_record[0], PerPerson(by_record[1], "user_id"))
    fit(*by_person)
    fit(by_record[0], nobodys)


def test_persons_are_pickled_for_workers_whatever_tells_them_apart():
    persons = PerPerson(records(), lambda record: record["user_id"], records=2)
    assert len(pickle.loads(pickle.dumps(persons))[0]) == 2
