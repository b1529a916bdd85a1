from lightning.pytorch.loggers import Logger

from lightning_gep.loggers.epoch_rows import EpochRows
from tests.toys import Classifier, loader, strategy, trainer


class Recorder(Logger):
    def __init__(self):
        super().__init__()
        self.seen, self.status = [], []

    name = version = "recorder"

    def log_hyperparams(self, *_):
        """None are looked at."""

    def log_metrics(self, metrics, step=None):
        self.seen.append((metrics, step))

    def finalize(self, status):
        self.status.append(status)


class Kept(EpochRows, Recorder):
    pass


def row(epoch, value=0.0):
    return {"epoch": epoch, "value": value}


def test_rows_wait_for_their_epoch_to_end_and_keep_their_order():
    logger, metrics = Kept(), {}
    for step, epoch in enumerate([0, 0, 0, 1, 1]):
        metrics.update(row(epoch, float(step)))  # a row is kept as it was
        logger.log_metrics(metrics, step)
        assert len(logger.seen) == (0 if epoch == 0 else 3)
    assert logger.seen == [(row(0, 0.0), 0), (row(0, 1.0), 1), (row(0, 2.0), 2)]
    for _ in range(2):
        logger.send_rows()
        assert [step for _, step in logger.seen] == [0, 1, 2, 3, 4], "every row once"
    other = Kept()
    other.send_rows()
    assert other.seen == []


def test_a_row_that_names_no_epoch_waits_with_those_of_its_own():
    """As LearningRateMonitor and others make them: passed on at once, they would tell the time of each step."""
    logger = Kept()
    logger.log_metrics({"value": 1.0}, 3)
    logger.log_metrics(row(0), 4)
    logger.log_metrics({"value": 2.0}, 5)
    assert len(logger.seen) <= 1, "before the first epoch there is nothing to wait for"
    logger.log_metrics(row(1), 6)
    assert [step for _, step in logger.seen] == [3, 4, 5]


def test_a_fit_logs_the_same_rows_as_without_it(tmp_path):
    seen = []
    for logger in (Recorder(), Kept()):
        fit = trainer(tmp_path, strategy(log_nonprivate=True), logger=logger, log_every_n_steps=1)
        fit.fit(Classifier(), loader(), loader(shuffle=False))
        seen.append(logger.seen)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 12, "ten steps and two validations"
