import pytest

from recipes.all_tables import PAIRS
from recipes.running.comparison import PICTURE, compared, draw, summary
from recipes.running.outcome import result_file, write_result
from tests.recipes.test_tables import result


def write(output, pair, gp, gep, baseline=()):
    runs = {run.cell.name: run for run in pair.table.runs(seeds=[0])}
    others = {run.cell.name: run for run in pair.table.baseline}
    for cells, name, values in ((runs, pair.gp, gp), (runs, pair.gep, gep), (others, pair.without_privacy, baseline)):
        for seed, value in enumerate(values):
            run = type(cells[name])(cells[name].table, cells[name].cell, seed)
            write_result(result_file(output, run), result(run, value))


def test_every_pair_names_cells_of_its_table_and_its_row_without_privacy():
    for pair in PAIRS:
        assert {pair.gp, pair.gep} <= {cell.name for cell in pair.table.cells}
        assert pair.without_privacy in {run.cell.name for run in pair.table.baseline}


def test_a_difference_has_the_error_of_both_sides(tmp_path):
    (pair, *_) = [pair for pair in PAIRS if pair.label.startswith("MNIST, ε = 2, the paper")]
    write(tmp_path, pair, (0.93, 0.94, 0.95), (0.96, 0.96, 0.96), (0.99,))
    (found,) = compared(PAIRS, tmp_path)
    assert found.difference == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(1 / 3**0.5)
    assert found.row == [pair.label, "99.00", "94.00 ± 1.00", "96.00 ± 0.00", "+2.00 ± 0.58", "3, 3"]
    page = "\n".join(summary(PAIRS, tmp_path))
    assert f"ahead of GP by more than twice that error in: {pair.label}." in page
    assert f"]({PICTURE})" in page
    draw(PAIRS, tmp_path)
    assert pair.label in (tmp_path / PICTURE).read_text()


def test_single_runs_decide_nothing(tmp_path):
    (pair, *_) = [pair for pair in PAIRS if "ε = 5, our settings" in pair.label]
    write(tmp_path, pair, (0.5,), (0.9,))
    page = "\n".join(summary(PAIRS, tmp_path))
    assert "ahead of GP by more than twice that error in: nothing so far." in page
    assert "+40.00, one run" in page


def test_nothing_is_said_of_nothing(tmp_path):
    assert summary(PAIRS, tmp_path) == []
    draw(PAIRS, tmp_path)
    assert not (tmp_path / PICTURE).exists()
