"""Which temperature and top-p to judge by: the paper's Table 4, and the choice it implies.

The paper takes the setting with the highest average over benchmarks on the aligned model. Here the
aligned model is the last one named. Settings that were sampled with the same seeds on the same
problems are compared problem by problem, so it can be said which of the others are behind, and
which only look so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from counterpoise.config.evaluation_settings import Setting, parse_grid
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.cells import Cell, Judged
from counterpoise.lab.evaluate.score import solved
from counterpoise.statistics.prompt_intervals import (
    IntervalEstimate,
    average_estimates,
    paired_difference,
)

TEMPERATURES, TOP_PS = (1.0, 0.6), (0.7, 0.95)  # Table 4


def asked(temperature: str, top_p: str, *, sweep: bool) -> list[Setting]:
    """What --temperature and --top-p name: every pair of a sweep, else the one there is.

    Example:
        >>> [str(setting) for setting in asked("1.0", "0.7,0.95", sweep=True)]
        ['1/0.7', '1/0.95']
    """
    temperatures = parse_grid("--temperature", temperature, TEMPERATURES if sweep else (0.6,))
    top_ps = parse_grid("--top-p", top_p, TOP_PS if sweep else (0.95,))
    if not sweep and len(temperatures) * len(top_ps) > 1:
        raise PoiseError("several temperatures or top-ps are a sweep: add --sweep")
    return [Setting(*pair) for pair in product(temperatures, top_ps)]


@dataclass(frozen=True, slots=True)
class Choice:
    """Example: Choice("mine", Setting(0.6, 0.95), 0.412, {Setting(1.0, 0.7): Estimate(...)})"""

    model: str
    best: Setting
    mean: float
    behind: dict[
        Setting, IntervalEstimate
    ]  # the others' average less the best's, problem by problem

    def level(self) -> list[Setting]:
        """Those that these problems cannot tell from the best."""
        return [setting for setting, gap in self.behind.items() if gap.high >= 0]

    def __str__(self) -> str:
        level = self.level()
        others = len(self.behind)
        tail = (
            f"not told apart from {', '.join(map(str, level))} by these problems"
            if level
            else "ahead of the other"
            if others == 1
            else f"ahead of all {others} others"
        )
        return f"{self.model}: {self.best} ({100 * self.mean:.1f} %), {tail}"


def choices(cells: Sequence[Cell]) -> list[Choice]:
    """For every model that was judged in several ways; the last one's is the one to take."""
    by_model: dict[str, dict[Setting, dict[str, Cell]]] = {}
    for cell in cells:
        at = by_model.setdefault(cell.header.model, {}).setdefault(cell.header.setting, {})
        at[cell.header.benchmark] = cell
    return [choose(model, found) for model, found in by_model.items() if len(found) > 1]


def choose(model: str, found: Mapping[Setting, Mapping[str, Cell]]) -> Choice:
    means = {setting: _mean(benchmarks) for setting, benchmarks in found.items()}
    best = max(means, key=lambda setting: means[setting])
    behind = {s: gap(found[s], found[best]) for s in found if s != best}
    return Choice(model, best, means[best], behind)


def gap(
    after: Mapping[str, Cell],
    before: Mapping[str, Cell],
    values: Callable[[Sequence[Judged]], list[float]] = solved,
) -> IntervalEstimate:
    """The mean over benchmarks of paired differences; what only one of them has is left out."""
    parts = []
    for name in before:
        new = after[name].done if name in after else {}
        old = {i: one for i, one in before[name].done.items() if i in new}
        if old:
            parts.append(
                paired_difference(values([new[i] for i in old]), values(list(old.values())))
            )
    return average_estimates(parts) if parts else IntervalEstimate(0.0, -1.0, 1.0)


def _mean(benchmarks: Mapping[str, Cell]) -> float:
    each = [solved(list(cell.done.values())) for cell in benchmarks.values() if cell.done]
    return sum(sum(x) / len(x) for x in each) / len(each) if each else 0.0
