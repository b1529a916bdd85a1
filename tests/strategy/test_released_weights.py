import torch

from lightning_gep.strategy import origins
from lightning_gep.strategy.origins import ReleasedWeights, hashes_of, released_by


def weights(seed=0, **shapes):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_a_hash_is_that_of_the_numbers():
    w = weights(w=(3, 4))["w"]
    (expected,) = hashes_of({"w": w}).values()
    for same in (w.double(), w.clone().requires_grad_(), w.reshape(4, 3), w.t().contiguous().t()):
        assert hashes_of({"another name": same}) == {"another name": expected}
    other = w.clone()
    other[2, 3] = torch.nextafter(other[2, 3], torch.tensor(9.0))
    assert hashes_of({"w": other})["w"] != expected


def test_what_could_be_equal_by_chance_has_no_hash():
    assert not hashes_of(
        {
            "few": torch.randn(3),
            "constant": torch.ones(50),
            "none": torch.zeros(0),
            "whole": torch.arange(9),
            "text": "a",
        }
    )


def test_bfloat16_has_a_hash():
    assert hashes_of({"w": torch.randn(8).bfloat16()})


def test_runs_are_found_by_what_they_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(origins, "RUNS_IN_THIS_PROCESS", set())
    before = weights(frozen=9, trained=9)
    released = ReleasedWeights(tmp_path / "a.ledger", hashes_of(before).values())
    after = {"frozen": before["frozen"], **weights(1, trained=9)}
    released.add(after)
    size = released.path.stat().st_size
    released.add(after)
    assert released.path.stat().st_size == size, "what is known is not written again"

    def found(tensors, *besides):
        return [(run.run_id, run.name) for run in released_by(hashes_of(tensors), tmp_path, besides=besides)]

    assert found(before) == []
    assert found({"part": before["frozen"], "copy": after["trained"]}) == [("a", "copy")]
    assert found(after, "a") == []
    later = weights(2, trained=9)
    released.add(later)
    assert found(after) == found(later) == [("a", "trained")]
    assert released_by(hashes_of(after), tmp_path / "another", besides=()) == []
    origins.note_here(tmp_path / "a.ledger")
    (run,) = released_by(hashes_of(after), tmp_path / "another", besides=())
    assert run.run_id == "a"


def test_what_two_runs_have_released_is_each_ones_own(tmp_path):
    same = weights(w=9)
    for name in "ab":
        ReleasedWeights(tmp_path / f"{name}.ledger", ()).add(same)
    hashes = hashes_of(same)
    assert released_by(hashes, tmp_path, besides=("a",)) == []
    assert [run.run_id for run in released_by(hashes, tmp_path, besides=())] == ["a", "b"]


def test_a_torn_line_hides_nothing_that_is_written_later(tmp_path):
    first, second = weights(w=9), weights(1, w=9)
    path = tmp_path / "a.weights"
    ReleasedWeights(tmp_path / "a.ledger", ()).add(first)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        ReleasedWeights(tmp_path / "a.ledger", ()).add(second)
        assert released_by(hashes_of(second), tmp_path, besides=())
    path.write_bytes(b"\xff\xfe\x00" + whole)
    assert released_by(hashes_of(first), tmp_path, besides=())
