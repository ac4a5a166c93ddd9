"""The records that stages hand to each other. Frozen; a field never gets a second meaning.

Axis legend, used across the package:
    _P prompts   _G responses of one prompt   _R rows of a batch   _T tokens of one response
    _S tokens of one prompt   _N tokens of a batch, flattened   _V vocabulary   _D hidden size

    Prompt --sample--> Response --verify--> Rollout --credit--> Row --compose--> BatchPlan
           --update--> StepResult --store--> TokenTrace

_T are the policy's own tokens. An environment's tokens between them (`Turn.observation`) are read
by every forward pass but not trained: they have no log-probability, no advantage, no place in _T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
RowName = tuple[str, int]  # a row: its group, and its index in the group
Columns = Mapping[str, Any]  # further columns of a problem's row, by name

NO_COLUMNS: Columns = {}  # shared by all problems without columns
ALL_COLUMNS = "*"  # among the names of columns to keep: every column that a row has


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `dict(message)` is its form in data files and in TRL.

    Example:
        Message("system", "Answer in one word.")
    """

    role: str
    content: str

    def keys(self) -> tuple[str, ...]:
        return ("role", "content")

    def __getitem__(self, name: str) -> str:
        return {"role": self.role, "content": self.content}[name]


Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem with its reference answer.

    Example:
        Prompt(id="word_problems/train/12", problem="Ana has 3 pens ...", answer="11")
    """

    id: str
    problem: str
    answer: str  # "" where the data has none, which only a reward of the user's may accept
    solution: str = ""
    """A worked solution, where the task has one. `poise warmup`, the reward `style` and reward
    functions with a parameter `solution` read it."""
    generic: str = ""
    """The problem without its particulars, where the task has such a text; anchors answer it."""
    columns: Columns = field(default_factory=lambda: NO_COLUMNS, repr=False, compare=False)
    """The columns of its data row, for reward functions of the user's: JSON values, and None where
    a row lacks one. Two prompts with equal texts are equal, whatever their columns."""
    messages: Messages = ()
    """The conversation that the model continues, for chat data. `problem` is then its text without
    the system prompt, for people, for comparing problems and for verifiers."""

    def rewrite(self, rewrite_text: Callable[[str], str]) -> Prompt:
        """The prompt with its problem, or the last user message of its conversation, rewritten."""
        users = [i for i, message in enumerate(self.messages) if message.role == "user"]
        messages = list(self.messages)
        for last_user in users[-1:]:
            messages[last_user] = Message("user", rewrite_text(messages[last_user].content))
        return replace(self, problem=rewrite_text(self.problem), messages=tuple(messages))


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn of an episode, with what the environment said before it and about it.

    Example:
        Turn(start=40, observation=[1, 41, 7, 2], action=(71, 74), feedback="")    # correct
    """

    start: int  # its first token among the response's own
    observation: Ints  # the environment's tokens before it; none before the first turn
    action: tuple[int, int]  # [start, end) among the response's own tokens: what was judged
    feedback: str  # of the environment, on this turn; "" if the turn was correct


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """One response of the sampler to a prompt.

    Example:
        Response(tokens=[41, 7, 2], logprobs=[-0.1, -1.2, -0.0], text="= 11", finished=True)
    """

    tokens: Ints  # [T], end tokens included where there are any
    logprobs: Floats  # [T], of the sampled token, at the sampling temperature, before top-p/top-k
    text: str  # decoded without special tokens; of an episode, policy and environment
    finished: bool  # False: cut off at the length limit
    turns: tuple[Turn, ...] = ()  # of an episode; empty without an environment
    reward: float | None = None  # of the environment; None: the verifier scores the response
    prompt_tokens: Ints | None = None  # of the environment's first message; None: the problem's
    first_message: str = ""  # of the environment, in place of the problem; "": none


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
    reward: float  # nan: the user's reward function says that it does not apply
    prompt_tokens: Ints  # [S]
    response_tokens: Ints  # [T]
    sampled_logprobs: Floats  # [T], by the sampler; see Response.logprobs. Unknown ones are nan
    finished: bool | None = True  # None: another trainer's rollouts do not say
    extra_rewards: Mapping[str, float] = field(
        default_factory=dict
    )  # in addition to the verifier's
    anchor: bool = False  # sampled from the prompt's generic text, trained with the full prompt
    generic_logprob: float | None = None  # mean of its group's anchors, by the sampler, per token
    turns: tuple[Turn, ...] = ()  # of an episode; see Response.turns
    columns: Columns = field(default_factory=lambda: NO_COLUMNS)  # Prompt.columns; not stored
    messages: Messages = ()  # Prompt.messages
    logged: Mapping[str, Any] = field(default_factory=dict)  # by the user's reward function
    first_message: str = ""  # of the environment, in place of the problem; see Response

    @property
    def problem(self) -> Prompt:
        """The problem that it answers, for verifying it again."""
        return Prompt(
            self.prompt_id,
            self.prompt,
            self.answer,
            columns=self.columns,
            messages=self.messages,
        )

    @property
    def prompt_as_read(self) -> Prompt:
        """What `prompt_tokens` encode: the problem, or the environment's message in its place."""
        if not self.first_message:
            return self.problem
        return replace(self.problem, problem=self.first_message, messages=())

    @property
    def observations(self) -> list[tuple[int, Ints]]:
        """(position in the response, the environment's tokens before it), in order."""
        T = len(self.response_tokens)
        return [(t.start, t.observation) for t in self.turns if len(t.observation) and t.start < T]

    @property
    def num_observation_tokens(self) -> int:
        return sum(len(tokens) for _, tokens in self.observations) if self.turns else 0


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt in one iteration: what an advantage is computed over.

    Example:
        Group(key="7:word_problems/train/12", iteration=7, rollouts=(r0, r1, ..., r7))
    """

    key: str
    iteration: int  # when it was sampled; 0: unknown
    rollouts: tuple[Rollout, ...]  # [G]

    @property
    def rewards_G(self) -> NDArray[np.float64]:
        return np.array([rollout.reward for rollout in self.rollouts], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One rollout with its credit: what composers order and steps train on.

    Composers and the buffer read `group`, `trajectory`, `advantage`, `num_tokens` and `born`; only
    `coupled` reads the rollout's tokens.

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
    trainer_logprobs_T: Floats | None = (
        None  # the trainer's log-probabilities when the row was sampled
    )
    reference_logprobs_T: Floats | None = None  # of the initial policy
    kl_coefficient: float | None = None  # of its KL; None: update.kl
    masked: bool = False  # truncated: no loss
    trajectory: str = ""  # of an agent whose calls are rows of several groups

    @property
    def name(self) -> RowName:
        return self.group, self.index

    @property
    def sign(self) -> int:
        """+1, -1, or 0 for a row that carries no signal."""
        return (self.advantage > 0) - (self.advantage < 0)

    def has_loss(self, *, all_rows: bool) -> bool:
        """Whether it takes part in the loss; `all_rows`: rows without signal do too."""
        return self.sign != 0 or (all_rows and not self.masked)

    @property
    def advantages_T(self) -> Floats:
        """Token advantages A_i * w_{i,t}."""
        if self.weights_T is None:
            return np.full(self.num_tokens, self.advantage, dtype=np.float32)
        return (self.advantage * self.weights_T).astype(np.float32)

    @property
    def old_logprobs(self) -> Floats:
        """Log-probabilities under the policy that sampled the row: the trainer's if known, else the
        sampler's."""
        return (
            self.content.sampled_logprobs
            if self.trainer_logprobs_T is None
            else self.trainer_logprobs_T
        )

    @property
    def loss_tokens(self) -> int:
        """Tokens that the loss is averaged over: none where the row is masked."""
        return 0 if self.masked else self.num_tokens

    @property
    def num_tokens_read(self) -> int:
        """Tokens that a forward pass reads for the row: its own and the environment's."""
        return self.num_tokens + (self.rollout.num_observation_tokens if self.rollout else 0)

    @property
    def content(self) -> Rollout:
        if self.rollout is None:
            raise ValueError(f"row {self.group}[{self.index}] has no content: its rollout is None")
        return self.rollout

    def truncate(self, length: int) -> Row:
        """The row with its response, and all that it holds of each token, cut to `length` tokens.

        Turns stay as they are: passes read no observation at or after the end of a response.
        """

        def cut(values_T: Floats | None) -> Floats | None:
            return None if values_T is None else values_T[:length]

        content = self.content
        return replace(
            self,
            num_tokens=length,
            rollout=replace(
                content,
                response_tokens=content.response_tokens[:length],
                sampled_logprobs=content.sampled_logprobs[:length],
            ),
            weights_T=cut(self.weights_T),
            trainer_logprobs_T=cut(self.trainer_logprobs_T),
            reference_logprobs_T=cut(self.reference_logprobs_T),
        )


def number_groups(rows: Iterable[Row]) -> tuple[list[int], list[str]]:
    """(number of each row's group, group of each number), in order of first appearance.

    Example:
        rows of the groups "b", "a", "b"    ->    ([0, 1, 0], ["b", "a"])
    """
    numbers: dict[str, int] = {}
    row_numbers = [numbers.setdefault(row.group, len(numbers)) for row in rows]
    return row_numbers, list(numbers)


def rows_by_group(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Indices of the rows of each group, in order of first appearance.

    Example:
        rows of the groups "b", "a", "b"    ->    {"b": [0, 2], "a": [1]}
    """
    indices: dict[str, list[int]] = {}
    for row_index, row in enumerate(rows):
        indices.setdefault(row.group, []).append(row_index)
    return indices


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Which rows share an optimizer step, in the order the steps are taken.

    Example:
        BatchPlan(composer="grouped", steps=((0, 1, 4, 5), (2, 3, 6, 7)))
    """

    composer: str
    steps: tuple[tuple[int, ...], ...]  # indices into the rows the plan was made for

    @property
    def num_rows(self) -> int:
        return sum(len(step) for step in self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """Inputs and outcome of one optimizer step. The per-token lists are the loss's own tensors.

    Example:
        StepResult(rows=(0, 1), logprobs=[...], ..., grad_norm=0.8, tokens=114, skipped="")
    """

    rows: tuple[int, ...]  # rows that took part in the loss, as indices of the batch
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
    capped_share: float = 0.0  # of tokens whose importance ratio is above the cap
    added_loss: float = 0.0  # the part of `loss` that the step's rule added
    chosen_share: float = 0.0  # of tokens that the rule selected
    kl: float | None = None  # from the initial policy, mean per token of `rows`; None: unknown
    learning_rate: float | None = None  # of this step; None: unknown, or no update was made
    hidden: Sequence[Tensor] = ()  # per row [T, D], the unembedding's input; kept on request


@dataclass(frozen=True, slots=True, eq=False)
class TokenTrace:
    """Every trained token of one iteration, one column per field: `tokens/step_00012.parquet`.

    Example:
        TokenTrace(columns={"step": [0, 0, ...], "row": [3, 3, ...], "position": [0, 1, ...],
                            "token": [41, 7, ...], "advantage": [...], "logprob": [...], ...})

    Tables of pushes and of probes have this form too, although a row of theirs is no token.
    """

    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)  # each [N]
