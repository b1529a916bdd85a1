"""The list of planted bugs fits the code and the tests as they are; `make mutants` plants them."""

import ast

import pytest

from tests.planted_bugs import BUGS, ROOT


def test_every_point_of_the_promise_has_a_bug():
    assert len(BUGS) >= 25
    assert len({bug.why for bug in BUGS}) == len(BUGS)
    assert {bug.point for bug in BUGS} == set(range(1, 11))


@pytest.mark.parametrize("bug", [pytest.param(bug, id=str(number)) for number, bug in enumerate(BUGS, 1)])
def test_it_can_be_planted_and_its_tests_are_there(bug):
    source = (ROOT / "lightning_gep" / bug.file).read_text()
    assert ast.dump(ast.parse(bug.planted(source))) != ast.dump(ast.parse(source))
    for test in bug.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()
