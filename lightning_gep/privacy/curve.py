"""ε over the steps of a run, computed once: asking after every step must not cost an accountant's query."""

import bisect
import math

from dp_accounting.pld import privacy_loss_distribution

from lightning_gep.privacy.accounting import LARGEST_TIGHT_EPSILON, Pld, Rdp, SampledGaussian, epsilon, pld_grid

GRID_POINTS = 32


class EpsilonCurve:
    """An upper bound on ε(t) for t equal steps, exact at the end of the plan.

    The accountant is asked at about 32 evenly spaced numbers of steps, the last of them the planned end. Any other t
    gets the value of the next grid point: ε never falls as steps are added, so that is an upper bound. Past the plan
    the grid grows by one point at a time, 3 % further on or as far as is asked for.
    """

    def __init__(self, event: SampledGaussian, delta: float, accountant: str, planned_steps: int | None = None) -> None:
        self.event, self.delta, self.accountant = event, delta, accountant
        self._horizon = planned_steps or 1000
        self._steps: list[int] = []
        self._epsilons: list[float] = []

    def __call__(self, steps: int) -> float:
        """ε after `steps` steps, rounded up."""
        if steps == 0:
            return 0.0
        if self.event.noise_multiplier == 0:
            return math.inf
        if not self._steps:
            self._fill()
        if steps > self._steps[-1]:
            self._add_point_beyond(steps)
        return self._epsilons[bisect.bisect_left(self._steps, steps)]

    def _add_point_beyond(self, steps: int) -> None:
        point = max(steps, self._steps[-1] + self._steps[-1] // GRID_POINTS)
        self._steps.append(point)
        self._epsilons += self._by_query([point])

    def _fill(self) -> None:
        """The grid up to the planned end."""
        stride = max(1, self._horizon // GRID_POINTS)
        grid = list(range(stride, self._horizon, stride))
        (at_end,) = self._by_query([self._horizon])
        tight = self.accountant == "pld" and at_end <= LARGEST_TIGHT_EPSILON and self.delta >= Pld.SMALLEST_DELTA
        inner = self._by_convolution(grid, at_end) if tight else self._by_query(grid)
        self._steps = [*grid, self._horizon]
        self._epsilons = [*(min(value, at_end) for value in inner), at_end]

    def _by_query(self, grid: list[int]) -> list[float]:
        if self.accountant == "rdp":
            return Rdp().epsilons(self.event, grid, self.delta)
        return [epsilon([(self.event, steps)], self.delta, self.accountant) for steps in grid]

    def _by_convolution(self, grid: list[int], at_end: float) -> list[float]:
        """One distribution composed up the grid: a convolution a point instead of a query from nothing."""
        if not grid:
            return []
        one_step = privacy_loss_distribution.from_gaussian_mechanism(
            self.event.noise_multiplier,
            sampling_prob=self.event.sample_rate,
            value_discretization_interval=pld_grid(at_end),
        )
        composed = one_step.self_compose(grid[0])
        values = [float(composed.get_epsilon_for_delta(self.delta))]
        if len(grid) > 1:
            stride = one_step.self_compose(grid[1] - grid[0])
            for _ in grid[1:]:
                composed = composed.compose(stride)
                values.append(float(composed.get_epsilon_for_delta(self.delta)))
        return values
