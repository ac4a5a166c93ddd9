"""The records that stages hand to each other. Frozen; a field never gets a second meaning.

Axis legend, used across the package:
    _P prompts   _G responses of one prompt   _R rows of a batch   _T tokens of one response
    _S tokens of one prompt   _N tokens of a batch, flattened   _V vocabulary   _D hidden size

    Prompt --sample--> Response --verify--> Rollout --credit--> Row --compose--> BatchPlan
           --update--> StepResult --store--> TokenTrace

_T are the policy's own tokens. What an environment says between them (`Turn.told`) is read by
every pass and counted by none: it has no log-probability, no advantage and no place in _T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Columns = Mapping[str, Any]  # further columns of a problem's row, by name

NO_COLUMNS: Columns = {}  # one for all problems that have none


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem with its reference answer.

    Example:
        Prompt(id="word_problems/train/12", problem="Ana has 3 pens ...", answer="11")
    """

    id: str
    problem: str
    answer: str
    solution: str = ""
    """A worked solution, where the task has one; only `poise warmup` reads it."""
    generic: str = ""
    """The problem without what makes it this one, where the task has it; anchors answer it."""
    columns: Columns = field(default_factory=lambda: NO_COLUMNS, repr=False, hash=False)
    """Of its row, those that a reward of the user's asks for; None where the row has none."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn of an episode: what the environment said before it, and what it says of it.

    Example:
        Turn(start=40, told=[1, 41, 7, 2], action=(71, 74), feedback="")     # the second one, right
    """

    start: int  # its first token among the response's own
    told: Ints  # the environment's tokens before it; none before the first turn
    action: tuple[int, int]  # [start, end) among the response's own tokens: what was judged
    feedback: str  # of the environment, in hindsight; "" when there is nothing to mend


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """What the sampler drew for one prompt.

    Example:
        Response(tokens=[41, 7, 2], logprobs=[-0.1, -1.2, -0.0], text="= 11", finished=True)
    """

    tokens: Ints  # [T], end tokens included where there are any
    logprobs: Floats  # [T], of the sampled token, at the sampling temperature, before top-p/top-k
    text: str  # decoded, special tokens left out; of an episode both voices
    finished: bool  # False: cut off at the length limit
    turns: tuple[Turn, ...] = ()  # of an episode; none: nobody answered


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """A response with its reward: one line of `rollouts/step_00012.jsonl`.

    Example:
        Rollout(prompt_id="word_problems/train/12", prompt="Ana has ...", answer="11",
                response="... \\boxed{11}", reward=1.0, prompt_tokens=[...],
                response_tokens=[...], sampled_logprobs=[...], finished=True)
    """

    prompt_id: str
    prompt: str
    answer: str
    response: str
    reward: float
    prompt_tokens: Ints  # [S]
    response_tokens: Ints  # [T]
    sampled_logprobs: Floats  # [T], by the sampler; see Response.logprobs. Unknown ones are nan
    finished: bool = True
    further: Mapping[str, float] = field(default_factory=dict)  # rewards beside the verifier's
    anchor: bool = False  # drawn after the prompt's generic text, and trained after its own
    turns: tuple[Turn, ...] = ()  # of an episode; see Response.turns
    columns: Columns = field(default_factory=lambda: NO_COLUMNS)  # Prompt.columns; not stored

    @property
    def problem(self) -> Prompt:
        """What it answers, to ask for a reward again."""
        return Prompt(self.prompt_id, self.prompt, self.answer, columns=self.columns)

    @property
    def told(self) -> list[tuple[int, Ints]]:
        """What the environment said before which of the response's tokens, in their order."""
        T = len(self.response_tokens)
        return [(t.start, t.told) for t in self.turns if len(t.told) and t.start < T]

    @property
    def num_told(self) -> int:
        return sum(len(tokens) for _, tokens in self.told) if self.turns else 0


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt in one iteration: what an advantage is computed over.

    Example:
        Group(key="7:word_problems/train/12", iteration=7, rollouts=(r0, r1, ..., r7))
    """

    key: str
    iteration: int  # when it was sampled
    rollouts: tuple[Rollout, ...]  # [G]

    @property
    def rewards_G(self) -> NDArray[np.float64]:
        return np.array([rollout.reward for rollout in self.rollouts], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One rollout with its credit: what composers order and steps train on.

    Composers and the buffer read only `group`, `advantage`, `num_tokens` and `born` (one composer,
    `coupled`, also the rollout's tokens); a loop that keeps its own tensors leaves `rollout` empty.

    Example:
        Row(group="7:word_problems/train/12", advantage=0.94, num_tokens=57, rollout=r0)
    """

    group: str  # Group.key: same prompt, same iteration
    advantage: float  # of the whole rollout; > 0 makes the row positive, < 0 negative
    num_tokens: int  # trained tokens: len(response_tokens)
    index: int = 0  # position in its group as sampled; (group, index) names the row for good
    born: int = 0  # iteration in which it was sampled
    rollout: Rollout | None = None
    weights_T: Floats | None = None  # token weights of the credit method; None means all ones
    scored_T: Floats | None = None  # the trainer's log-probabilities when the row was sampled

    @property
    def name(self) -> tuple[str, int]:
        return self.group, self.index

    @property
    def sign(self) -> int:
        """+1, -1, or 0 for a row that carries no signal."""
        return (self.advantage > 0) - (self.advantage < 0)

    @property
    def advantages_T(self) -> Floats:
        """Token advantages A_i * w_{i,t}."""
        if self.weights_T is None:
            return np.full(self.num_tokens, self.advantage, dtype=np.float32)
        return (self.advantage * self.weights_T).astype(np.float32)

    @property
    def old_logprobs(self) -> Floats:
        """Of the policy that sampled the row: by the trainer if it scored it, else the sampler."""
        return self.content.sampled_logprobs if self.scored_T is None else self.scored_T

    @property
    def num_read(self) -> int:
        """Tokens a pass reads for the row: its own, and what an environment told in between."""
        return self.num_tokens + (self.rollout.num_told if self.rollout else 0)

    @property
    def content(self) -> Rollout:
        if self.rollout is None:
            raise ValueError(f"row {self.group}[{self.index}] has no content: its rollout is None")
        return self.rollout


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which rows share an optimizer step, in the order the steps are taken.

    Example:
        BatchPlan(rule="grouped", steps=((0, 1, 4, 5), (2, 3, 6, 7)))
    """

    rule: str
    steps: tuple[tuple[int, ...], ...]  # indices into the rows the plan was made for

    @property
    def num_rows(self) -> int:
        return sum(len(step) for step in self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What one optimizer step used and did. The per-token lists are the tensors of the loss itself.

    Example:
        StepResult(rows=(0, 1), logprobs=[...], ..., grad_norm=0.8, tokens=114, skipped="")
    """

    rows: tuple[int, ...]  # rows that carried signal, as indices of the batch
    logprobs: Sequence[Floats]  # per row [T], by the trainer, before this step's update
    old_logprobs: Sequence[Floats]  # per row [T], of the policy that sampled the row
    advantages: Sequence[Floats]  # per row [T], A_i * w_{i,t}
    entropies: Sequence[Floats]  # per row [T], of the whole distribution, in nats
    pulls: Sequence[Floats]  # per row [T], -dL/dlogp: advantage, ratio, clip and mean in one number
    coefficients: Floats  # [rows], what each of the row's token losses was multiplied by
    loss: float
    grad_norm: float  # before clipping
    clipped_share: float  # of tokens whose gradient the clip removed
    tokens: int  # trained tokens of the step, rows without signal included
    skipped: str = ""  # why no update was made: "" | "no signal" | "not finite"
    capped_share: float = 0.0  # of tokens whose importance weight is the cap
    added_loss: float = 0.0  # the part of `loss` that the step's rule added
    chosen_share: float = 0.0  # of tokens that the rule singled out
    hidden: Sequence[Tensor] = ()  # per row [T, D], the unembedding's input; kept when asked for


@dataclass(frozen=True, slots=True, eq=False)
class TokenTrace:
    """Every trained token of one iteration, one column a field: `tokens/step_00012.parquet`.

    Example:
        TokenTrace(columns={"step": [0, 0, ...], "row": [3, 3, ...], "position": [0, 1, ...],
                            "token": [41, 7, ...], "advantage": [...], "logprob": [...], ...})
    """

    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)  # each [N]
