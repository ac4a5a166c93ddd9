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
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultFile
from counterpoise.lab.evaluate.score import solved_shares
from counterpoise.statistics.prompt_intervals import Estimate, average, difference

TEMPERATURES, TOP_PS = (1.0, 0.6), (0.7, 0.95)  # Table 4


def parse_settings(temperature: str, top_p: str, *, sweep: bool) -> list[Setting]:
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
class SettingChoice:
    """Example: SettingChoice("mine", Setting(0.6, 0.95), 0.412, {Setting(1.0, 0.7): Estimate(...)})"""

    model: str
    best: Setting
    mean: float
    differences: dict[Setting, Estimate]  # the others' average less the best's, problem by problem

    def indistinguishable(self) -> list[Setting]:
        """Those that these problems cannot tell from the best."""
        return [setting for setting, gap in self.differences.items() if gap.high >= 0]

    def __str__(self) -> str:
        level = self.indistinguishable()
        others = len(self.differences)
        tail = (
            f"not told apart from {', '.join(map(str, level))} by these problems"
            if level
            else "ahead of the other"
            if others == 1
            else f"ahead of all {others} others"
        )
        return f"{self.model}: {self.best} ({100 * self.mean:.1f} %), {tail}"


def choose_settings(cells: Sequence[ResultFile]) -> list[SettingChoice]:
    """For every model that was judged in several ways; the last one's is the one to take."""
    by_model: dict[str, dict[Setting, dict[str, ResultFile]]] = {}
    for cell in cells:
        at = by_model.setdefault(cell.header.model, {}).setdefault(cell.header.setting, {})
        at[cell.header.benchmark] = cell
    return [choose_setting(model, found) for model, found in by_model.items() if len(found) > 1]


def choose_setting(model: str, found: Mapping[Setting, Mapping[str, ResultFile]]) -> SettingChoice:
    means = {setting: _mean(benchmarks) for setting, benchmarks in found.items()}
    best = max(means, key=lambda setting: means[setting])
    behind = {s: paired_difference(found[s], found[best]) for s in found if s != best}
    return SettingChoice(model, best, means[best], behind)


def paired_difference(
    after: Mapping[str, ResultFile],
    before: Mapping[str, ResultFile],
    values: Callable[[Sequence[JudgedProblem]], list[float]] = solved_shares,
) -> Estimate:
    """The mean over benchmarks of paired differences; what only one of them has is left out."""
    parts = []
    for name in before:
        new = after[name].judged if name in after else {}
        old = {i: one for i, one in before[name].judged.items() if i in new}
        if old:
            parts.append(difference(values([new[i] for i in old]), values(list(old.values()))))
    return average(parts) if parts else Estimate(0.0, -1.0, 1.0)


def _mean(benchmarks: Mapping[str, ResultFile]) -> float:
    each = [
        solved_shares(list(cell.judged.values())) for cell in benchmarks.values() if cell.judged
    ]
    return sum(sum(x) / len(x) for x in each) / len(each) if each else 0.0
