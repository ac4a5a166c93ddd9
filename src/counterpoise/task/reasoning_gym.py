r"""The `reasoning_gym` task: procedurally generated problems of that package.

Training and held-out problems come from different seeds of one generator. Problems that repeat an
earlier one of their split, and training problems that repeat a held-out one, are dropped, so small
problem spaces give fewer than `size` and `heldout`. Our verifiers (`exact`, or `math` for numbers)
compare with the single reference answer, so choose a dataset whose problems have one answer, and a
prompt template that asks for \boxed{} (`model.template`). A user's reward function may take
`metadata`: what the generator records about a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.seeds import seed_for
from counterpoise.task.columns import check_needed_columns, select_columns
from counterpoise.task.split_heldout import normalize_problem, split_prompts
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Prompt


def load(
    dataset: str,
    *,
    size: int = 2000,
    heldout: int = 128,
    seed: int = 0,
    needed_columns: Sequence[str] = (),
) -> TaskPrompts:
    """At most `size` training and `heldout` held-out problems, each text once."""
    if not dataset:
        raise PoiseError("the reasoning_gym task needs the name of a dataset: set task.dataset")
    heldout_prompts = generate(dataset, "heldout", heldout, seed, needed_columns)
    prompts = generate(dataset, "train", size, seed, needed_columns)
    split = split_prompts(prompts, heldout_prompts, dataset)
    return TaskPrompts(dataset, split.train, split.heldout, repeats=split.repeats)


def generate(
    dataset: str, split: str, count: int, seed: int, needed_columns: Sequence[str] = ()
) -> list[Prompt]:
    """At most `count` problems of one split, each text once."""
    if count == 0:
        return []
    # The package takes a 32-bit seed.
    rows = _create(dataset, count, seed_for(seed, f"reasoning_gym/{split}") >> 32)
    prompts: dict[str, Prompt] = {}
    check_needed_columns(needed_columns, rows[0].keys(), dataset)
    for index in range(count):
        row = rows[index]
        problem, answer = row["question"], row["answer"]
        if not isinstance(answer, str) or not answer.strip():
            raise PoiseError(
                f"reasoning_gym dataset '{dataset}' gives no reference answer: it scores by its "
                "own rules; set task.dataset to another"
            )
        prompt_id, columns = f"{dataset}/{split}/{index}", select_columns(row, needed_columns)
        prompt = Prompt(prompt_id, problem.strip(), answer.strip(), columns=columns)
        prompts.setdefault(normalize_problem(problem), prompt)
    return list(prompts.values())


def _create(dataset: str, size: int, seed: int) -> Any:
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise PoiseError(
            "the reasoning_gym task needs the package reasoning-gym: pip install "
            "'counterpoise[gym]'"
        ) from None
    if dataset not in DATASETS:
        close_names = get_close_matches(dataset, DATASETS, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(repr(name) for name in close_names)}? "
            if close_names
            else ""
        )
        raise PoiseError(
            f"unknown reasoning_gym dataset '{dataset}': {hint}"
            f"(there are {len(DATASETS)}; reasoning_gym's GALLERY.md shows them)"
        )
    try:
        return create_dataset(dataset, size=size, seed=seed)
    except (AssertionError, TypeError, ValueError) as error:  # some datasets need options
        raise PoiseError(f"reasoning_gym dataset '{dataset}': {error}") from None
