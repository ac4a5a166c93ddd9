"""Choose the prompts of an iteration before anything is sampled (`sample.choose`).

    epochs          shuffled epochs, whatever happened before
    skip_settled    shuffled epochs without prompts that were always or never solved
    pools           a quarter each of new, hard (p < 1/3), medium and easy (p > 2/3) prompts
    recent_mixed    shuffled epochs, but for each group without reward spread in the last iteration
                    one prompt of a recent group with spread is sampled again; at most half of all
    aligned         up to half of the prompts are those whose latest update raised held-out success
                    most, measured to first order; the others come from the shuffled epochs

All but `epochs` read the prompt memory (`sample/prompt_memory.py`), which says what is settled.
None of them runs dry: where too few open prompts are left, settled ones come back, those that were
sampled longest ago first.

recent_mixed is prioritised group replay (arXiv:2606.01281) for prompts: the paper replaces groups
without spread by the most recent groups with spread, rollouts included, and corrects for the older
policy. Here their prompts are sampled again, so nothing is off policy, but each costs the sampling
of a new group. The limit of one half is not the paper's: without it, a run without spread would see
no new prompt.

aligned has CROPI's idea (arXiv:2510.26491: prompts by their influence on a validation set) with the
pushes that `poise trace` sums (`monitor.probe_through`). CROPI projects gradients of past rollouts;
here a prompt's influence is that of its own latest update, so new prompts come from the epochs.
Held-out success is read from the steering half of the probes, the half of the held-out answers
that training may read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.sample.prompt_memory import SOLVED, UNSOLVED, PromptMemory
from counterpoise.seeds import rng_for
from counterpoise.types import Group, Ints, Prompt
from counterpoise.variants import PROMPT_CHOICES

EncodedPrompt = tuple[Prompt, Ints]  # a prompt and its tokens
POOLS = ("new", "hard", "medium", "easy")


@dataclass(frozen=True, slots=True, eq=False)
class PromptChoice:
    """The prompts of an iteration, and how many settled ones were passed over.

    Example:
        PromptChoice([(prompt, tokens), ...], train_set, skipped_solved=3, skipped_unsolved=1)
    """

    prompts: list[EncodedPrompt]
    # Dynamic sampling takes its prompts from these, leaving out those in `prompts`.
    replacements: Sequence[EncodedPrompt]
    skipped_solved: int = 0
    skipped_unsolved: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PromptRequest:
    """What a choice can read; prompts are numbered as in `train_set`."""

    train_set: Sequence[EncodedPrompt]
    memory: PromptMemory
    num_prompts: int
    seed: int
    iteration: int

    def id_of(self, index: int) -> str:
        return self.train_set[index][0].id

    def settled_as(self, index: int) -> str:
        return self.memory.settled_as(self.id_of(index), self.iteration)

    def epoch_order(self) -> Iterator[int]:
        """Prompts from the memory's position in the epochs on, without end; advances it."""
        num_train = len(self.train_set)
        while True:
            epoch, start = divmod(self.memory.next_position, num_train)
            order = rng_for(self.seed, "prompts", epoch).permutation(num_train)
            for index in order[start:].tolist():
                self.memory.next_position += 1
                yield index

    def by_last_visit(self, indices: list[int]) -> list[int]:
        """Sorted by when they were sampled, longest ago first."""
        return sorted(indices, key=lambda index: self.memory.last_visit(self.id_of(index)))


# (indices of the prompts, how many settled prompts of each kind were passed over)
Choice = tuple[list[int], Counter[str]]


def choose_prompts(
    train_set: Sequence[EncodedPrompt], config: RunConfig, iteration: int, memory: PromptMemory
) -> PromptChoice:
    """The prompts of an iteration by `sample.choose`."""
    request = PromptRequest(train_set, memory, config.sample.prompts, config.loop.seed, iteration)
    indices, skipped = PROMPT_CHOICES.load(config.sample.choose)(request)
    return PromptChoice(
        [train_set[index] for index in indices],
        open_prompts(train_set, memory, iteration),
        skipped_solved=skipped[SOLVED],
        skipped_unsolved=skipped[UNSOLVED],
    )


def remember_groups(
    memory: PromptMemory,
    choice: PromptChoice,
    groups: Sequence[Group],
    config: RunConfig,
    iteration: int,
    influence: Mapping[str, float],
) -> dict[str, Any]:
    """Add an iteration to the memory; returns its line of memory.jsonl, {} without a memory.

    `influence` is what its update did to the steering half of the probes, by prompt id.
    """
    if not config.has_prompt_memory:
        return {}
    remembered_influence = dict(influence) if config.sample.choose == "aligned" else {}
    memory.influence.update(remembered_influence)
    return {
        "prompts": memory.record(groups, iteration),
        **({"influence": remembered_influence} if remembered_influence else {}),
        "skipped_solved": choice.skipped_solved,
        "skipped_unsolved": choice.skipped_unsolved,
        "next_position": memory.next_position,
    }


def pick_prompts(
    train_set: Sequence[EncodedPrompt], config: RunConfig, iteration: int
) -> list[EncodedPrompt]:
    """The prompts of an iteration by `epochs`, for engines and studies without a memory."""
    request = PromptRequest(
        train_set, PromptMemory(), config.sample.prompts, config.loop.seed, iteration
    )
    return [train_set[index] for index in epochs(request)[0]]


def open_prompts(
    train_set: Sequence[EncodedPrompt], memory: PromptMemory, iteration: int
) -> Sequence[EncodedPrompt]:
    """The prompts that dynamic sampling may take: those that are not settled."""
    if not memory.visits:
        return train_set
    return [pair for pair in train_set if not memory.settled_as(pair[0].id, iteration)]


def epochs(request: PromptRequest) -> Choice:
    """Shuffled epochs, each without its incomplete last batch."""
    P, num_train = request.num_prompts, len(request.train_set)
    epoch, iteration_of_epoch = divmod(request.iteration - 1, num_train // P)
    order = rng_for(request.seed, "prompts", epoch).permutation(num_train)
    start = iteration_of_epoch * P
    return order[start : start + P].tolist(), Counter()


def skip_settled(request: PromptRequest) -> Choice:
    """The next open prompts of the shuffled epochs."""
    return _walk_epochs(request, request.num_prompts, set())


def pools(request: PromptRequest) -> Choice:
    """Equal shares of new, hard, medium and easy prompts."""
    members: dict[str, list[int]] = {pool: [] for pool in POOLS}
    settled: list[int] = []
    rng = rng_for(request.seed, "pools", request.iteration)
    for index in rng.permutation(len(request.train_set)).tolist():
        if request.settled_as(index):
            settled.append(index)
        else:
            members[pool_of(request.memory.success_rate(request.id_of(index)))].append(index)
    quota, remainder = divmod(request.num_prompts, len(POOLS))
    quotas = {pool: quota + (number < remainder) for number, pool in enumerate(POOLS)}
    chosen = [index for pool in POOLS for index in members[pool][: quotas[pool]]]
    spare = [index for pool in POOLS for index in members[pool][quotas[pool] :]]
    settled = request.by_last_visit(settled)
    chosen += (spare + settled)[: request.num_prompts - len(chosen)]
    return chosen, _count_skipped(request, settled, chosen)


def pool_of(success_rate: float | None) -> str:
    """The difficulty pool of an open prompt.

    Example:
        >>> [pool_of(rate) for rate in (None, 0.0, 0.5, 0.9)]
        ['new', 'hard', 'medium', 'easy']
    """
    if success_rate is None:
        return "new"
    return "hard" if success_rate < 1 / 3 else "easy" if success_rate > 2 / 3 else "medium"


def recent_mixed(request: PromptRequest) -> Choice:
    """Epochs that also repeat the latest prompts with reward spread. arXiv:2606.01281"""
    memory = request.memory
    wanted = min(memory.num_uniform(request.iteration - 1), request.num_prompts // 2)
    mixed_prompts = [
        index
        for index in range(len(request.train_set))
        if (visits := memory.visits.get(request.id_of(index))) and visits[-1].mixed
    ]
    replayed = request.by_last_visit(mixed_prompts)[::-1][:wanted]
    chosen, skipped = _walk_epochs(request, request.num_prompts - len(replayed), set(replayed))
    return chosen + replayed, skipped


def aligned(request: PromptRequest) -> Choice:
    """Epochs that also repeat the prompts that raised held-out success most. arXiv:2510.26491"""
    influence = request.memory.influence
    helpful = sorted(
        (
            index
            for index in range(len(request.train_set))
            if influence.get(request.id_of(index), 0.0) > 0 and not request.settled_as(index)
        ),
        key=lambda index: -influence[request.id_of(index)],
    )
    repeated = helpful[: request.num_prompts // 2]
    chosen, skipped = _walk_epochs(request, request.num_prompts - len(repeated), set(repeated))
    return chosen + repeated, skipped


def _walk_epochs(request: PromptRequest, wanted: int, excluded: set[int]) -> Choice:
    """The next `wanted` open prompts of the epochs, and how many settled ones were passed over."""
    seen = set(excluded)
    chosen: list[int] = []
    settled: list[int] = []
    order = request.epoch_order()
    # From the middle of an epoch, two lengths of the data contain every prompt.
    for _ in range(2 * len(request.train_set)):
        if len(chosen) == wanted:
            break
        index = next(order)
        if index not in seen:
            seen.add(index)
            (settled if request.settled_as(index) else chosen).append(index)
    chosen += request.by_last_visit(settled)[: wanted - len(chosen)]
    return chosen, _count_skipped(request, settled, chosen)


def _count_skipped(
    request: PromptRequest, settled: Sequence[int], chosen: Sequence[int]
) -> Counter[str]:
    """How many settled prompts were not chosen, by kind."""
    chosen_set = set(chosen)
    return Counter(request.settled_as(index) for index in settled if index not in chosen_set)
