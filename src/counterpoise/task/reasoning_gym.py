r"""The `reasoning_gym` task: procedurally generated problems of that package.

Training and held-out problems come from different seeds of one generator; a training problem that
repeats a held-out one, or another training problem, is dropped, so small problem spaces give fewer
than `size`. Our verifiers (`exact`, or `math` for numbers) compare with the single reference
answer, so choose a dataset whose problems have one answer, and ask for it in a box. A user's reward
function may take `metadata`: what the generator records about a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.seeds import seed_for
from counterpoise.task.columns import FieldNames
from counterpoise.task.prompts import Task
from counterpoise.task.split_heldout import drop_heldout_texts, normalize_problem
from counterpoise.types import Prompt


def load(
    dataset: str,
    *,
    size: int = 2000,
    heldout: int = 128,
    seed: int = 0,
    keep: Sequence[str] = (),
) -> Task:
    """`size` training and `heldout` held-out problems, without repetitions."""
    if not dataset:
        raise PoiseError("the reasoning_gym task needs the name of a dataset: set task.dataset")
    heldout_prompts = generate(dataset, "heldout", heldout, seed, keep)
    train = generate(dataset, "train", size, seed, keep)
    return Task(dataset, drop_heldout_texts(train, heldout_prompts, dataset), heldout_prompts)


def generate(
    dataset: str, split: str, count: int, seed: int, keep: Sequence[str] = ()
) -> list[Prompt]:
    """`count` problems of one split, each text once."""
    if count == 0:
        return []
    # The package takes a 32-bit seed.
    rows = _create(dataset, count, seed_for(seed, f"reasoning_gym/{split}") >> 32)
    prompts: dict[str, Prompt] = {}
    fields = FieldNames(keep=tuple(keep))
    fields.check_columns_exist(rows[0].keys(), dataset)
    for index in range(count):
        row = rows[index]
        problem, answer = row["question"], row["answer"]
        if not isinstance(answer, str) or not answer.strip():
            raise PoiseError(
                f"reasoning_gym dataset '{dataset}' gives no reference answer: it scores by its "
                "own rules; set task.dataset to another"
            )
        prompt_id, columns = f"{dataset}/{split}/{index}", fields.kept_columns(row)
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
