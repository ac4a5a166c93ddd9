"""steps = compose(rows, num_steps, seed): a user's function as the composer.

    rows        list of Row: `group`, `advantage`, `num_tokens`; `rollout` may be None
    num_steps   steps of this update: batch.steps, unless rows_per_step or drop_silent change it
    seed        of this iteration; draw all randomness from it, or a resumed run will differ
    returned    num_steps lists of row numbers, in the order of the steps

It must place every row, including those without signal. `compose.py` checks the plan as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index

from counterpoise import plugins
from counterpoise.errors import PoiseError
from counterpoise.types import Row

WHY_NO_ROLLOUT = "TRL does not expose rollouts, and a file without response_tokens has none"


def load_composer(name: str) -> Callable[[Sequence[Row], int, int], list[list[int]]]:
    """The composer for a plugin name (FILE.py:NAME)."""
    function = plugins.load_plugin_function(name, "rows", "num_steps", "seed")
    label = str(plugins.parse_plugin_name(name))

    def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
        try:
            returned_steps = function(list(rows), num_steps, seed)
        except PoiseError as fault:
            # The likeliest cause of an AttributeError here: the plugin reads row.rollout.
            lacks_rollouts = any(row.rollout is None for row in rows)
            if lacks_rollouts and isinstance(fault.__cause__, AttributeError):
                raise PoiseError(f"{fault} (here row.rollout is None: {WHY_NO_ROLLOUT})") from fault
            raise
        try:
            return [[index(row_number) for row_number in step] for step in returned_steps]
        except TypeError as fault:
            raise PoiseError(
                f"{label} did not return lists of row numbers ({fault}): return {num_steps} lists, "
                "one for each step"
            ) from fault

    return compose
