from lightning_gep.strategy.logs import recorded_logs
from tests.toys import Classifier


def test_nothing_gets_past_an_outer_recorder_when_an_inner_one_ends():
    module = Classifier()
    with recorded_logs(module) as outer:
        with recorded_logs(module) as inner:
            module.log("first", 1.0, True)
            module.log_dict({"second": 2.0, "third": 3.0})
        module.log("fourth", 4.0)
    assert inner.names == ["first", "second", "third"]
    assert inner.entries[0] == ("first", 1.0, {"prog_bar": True})
    assert outer.names == ["fourth"]
    assert "log" not in vars(module)
