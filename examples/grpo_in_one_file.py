r"""GRPO in one file, with planned batches. Read it from top to bottom.

    python examples/grpo_in_one_file.py                        about a minute on two CPU cores
    python examples/grpo_in_one_file.py --composer shuffled    groups are split, as in TRL
    python examples/grpo_in_one_file.py --tau 0                no reward balance

    sample -> verify -> advantages -> balance (RB) -> compose (QB) -> clipped loss -> AdamW

Two of these stages are what Counterpoise is about. A group's advantages sum to zero, so whatever
its right and wrong responses have in common cancels out of the gradient, but only if they share an
optimizer step. QB (query-preserved mini-batches) keeps each group in one step; RB (reward balance)
updates only on batches in which neither sign is rare.

What is simplified, and where the library (src/counterpoise/) does better:

    transformers' generate, finished rows still computed, one global seed    sample/, seeds.py
    a reward is an exact match of strings: good for whole numbers only       verify/math/verifier.py
    rows padded to the longest, prompts repeated for each response           model/packing.py
    all logits [R, L, V] in memory, each step one forward pass               model/head.py, update/
    plans balanced greedily; nothing checked, described, stored, resumed     batch/, store/

Its gradient still equals the library's: tests/test_examples.py compares the two. Read
src/counterpoise/loop.py next: the same stages, one file each.

Axes:  _P prompts   _G responses of one prompt   _R rows of a batch   _S tokens of one prompt
       _T tokens of one response   _L both   _N response tokens of a batch, flat   _V vocabulary
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizer
from transformers.utils import logging

import counterpoise
from counterpoise.task.word_problems import make_problem

MODEL = Path(counterpoise.__file__).parent / "assets" / "embedded"  # a Qwen3 of 1.3 M parameters
LEVELS = [1]  # two-step problems with small numbers; the model solves about two thirds
PROMPTS = 12  # P, new ones in every iteration
GROUP_SIZE = 8  # G
MAX_NEW_TOKENS = 60  # a solution takes about 40
BATCH = 80  # rows of a balanced batch; even
MAX_AGE = 4  # iterations that a group may wait for its batch
STEPS = 4  # optimizer steps that share a batch
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
LEARNING_RATE = 1e-4  # for this small model; 1e-6 is usual for large ones


@dataclass(frozen=True, eq=False)
class Row:
    """One response with its credit, the unit of a batch. No stage changes a row in place."""

    group: int  # number of its problem; each number is used once
    born: int  # iteration that sampled it
    prompt_S: Tensor
    response_T: Tensor  # with its end token, unless it was truncated
    old_logprobs_T: Tensor  # by the policy that sampled it
    reward: float
    advantage: float  # of each of its tokens


# -- 1  sample -----------------------------------------------------------------------------------
def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizer, problems_P: Sequence[str]
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """o_1 ... o_G ~ pi(. | q) for every problem q. Returns prompts [P][S], responses [P][G][T].

    Temperature 1 and no top-k (transformers' default is 50): the distribution that is sampled must
    be the one that is trained. Padding goes on the left, so that every row continues at its end.
    """
    chats = [[{"role": "user", "content": text}] for text in problems_P]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    prompts_PS, mask_PS = inputs["input_ids"], inputs["attention_mask"].bool()
    output_RL = model.generate(
        **inputs,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        num_return_sequences=GROUP_SIZE,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    end = tokenizer.eos_token_id
    responses = [trim_after(end, tokens) for tokens in output_RL[:, prompts_PS.shape[1] :]]
    responses_PG = [responses[r : r + GROUP_SIZE] for r in range(0, len(responses), GROUP_SIZE)]
    prompts_P = [tokens_S[mask_S] for tokens_S, mask_S in zip(prompts_PS, mask_PS, strict=True)]
    return prompts_P, responses_PG


def trim_after(end: int, tokens: Tensor) -> Tensor:
    """The tokens up to and including the first `end`; the rest is padding."""
    positions = (tokens == end).nonzero()
    return tokens[: int(positions[0]) + 1] if len(positions) else tokens


# -- 2  verify -----------------------------------------------------------------------------------
def reward(response: str, answer: str) -> float:
    r"""r = 1 if the last \boxed{...} holds the answer, else 0."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", response)
    return float(bool(boxes) and boxes[-1].strip() == answer)


# -- 3  advantages -------------------------------------------------------------------------------
def advantages(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-6). They sum to zero; equal rewards give no signal.

    credit/advantages.py, with Dr. GRPO, RLOO and others next to it.
    """
    return (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + 1e-6)


# -- 4  balance (RB) -----------------------------------------------------------------------------
def balance(waiting: list[list[Row]], tau: float) -> tuple[list[Row], list[list[Row]]]:
    """A batch B with |B| = BATCH and min(N+, N-) >= tau |B|, and the groups that still wait.

    Groups are taken oldest first until there are enough rows of each sign; the batch is empty while
    there are not. Surplus rows are dropped from the more common sign, each time from the group that
    has most of it, so that no group loses its last row of a sign. batch/buffer.py can also choose
    whole groups.
    """
    batch_groups: list[list[Row]] = []
    for group in waiting:
        batch_groups.append(list(group))
        positive, negative = count(batch_groups, +1), count(batch_groups, -1)
        if positive + negative >= BATCH and min(positive, negative) >= tau * BATCH:
            break
    else:
        return [], waiting
    for _ in range(positive + negative - BATCH):
        sign = +1 if count(batch_groups, +1) > count(batch_groups, -1) else -1
        largest = max(reversed(batch_groups), key=lambda group: count([group], sign))
        largest.remove([row for row in largest if row.advantage * sign > 0][-1])
    return [row for group in batch_groups for row in recentred(group)], waiting[len(batch_groups) :]


def recentred(group: Sequence[Row]) -> list[Row]:
    """A_i - mean(A): a group that lost rows sums to zero again (0/1 rewards; batch/recentre.py)."""
    mean = float(np.mean([row.advantage for row in group]))
    return [replace(row, advantage=row.advantage - mean) for row in group]


def count(groups: Sequence[Sequence[Row]], sign: int) -> int:
    """N+ or N-: the rows whose advantage has that sign."""
    return sum(row.advantage * sign > 0 for group in groups for row in group)


# -- 5  compose (QB) -----------------------------------------------------------------------------
def grouped(rows: Sequence[Row], rng: np.random.Generator) -> list[list[int]]:
    """QB: every group stays within one step. Heaviest group first, each to the lightest step.

    A plan is just lists of row indices: it can be printed, checked and compared.
    batch/grouped.py balances better (Karmarkar-Karp), with the same number of groups in each step.
    """
    members: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault(row.group, []).append(i)
    loads = {group: sum(len(rows[i].response_T) for i in members[group]) for group in members}
    steps: list[list[int]] = [[] for _ in range(STEPS)]
    step_loads = [0] * STEPS
    for group in sorted(members, key=lambda group: -loads[group]):
        lightest = int(np.argmin(step_loads))
        steps[lightest] += members[group]
        step_loads[lightest] += loads[group]
    return steps


def shuffled(rows: Sequence[Row], rng: np.random.Generator) -> list[list[int]]:
    """A random permutation cut into equal steps, as TRL does: groups are split."""
    return [step.tolist() for step in np.array_split(rng.permutation(len(rows)), STEPS)]


COMPOSERS = {"grouped": grouped, "shuffled": shuffled}


def count_split_groups(rows: Sequence[Row], plan: Sequence[Sequence[int]]) -> int:
    """Number of groups with rows in more than one step; batch/describe.py has more metrics."""
    group_steps = {(rows[i].group, s) for s, step in enumerate(plan) for i in step}
    return sum(steps > 1 for steps in Counter(group for group, _ in group_steps).values())


# -- 6  the loss ---------------------------------------------------------------------------------
def logprobs(
    model: PreTrainedModel, prompts_R: Sequence[Tensor], responses_R: Sequence[Tensor]
) -> list[Tensor]:
    """log pi(o_t | q, o_<t) for every response token: [R][T].

    Padding is on the right, where causal attention does not look, and is cut off at once: no mask
    is needed, here or later.
    """
    sequences = [torch.cat(pair) for pair in zip(prompts_R, responses_R, strict=True)]
    tokens_RL = pad_sequence(sequences, batch_first=True)
    logits_RLV = model(tokens_RL, use_cache=False).logits[:, :-1]  # position l predicts l + 1
    logprobs_RL = logits_RLV.log_softmax(-1).gather(-1, tokens_RL[:, 1:, None]).squeeze(-1)
    return [
        logprobs_L[len(prompt_S) - 1 :][: len(response_T)]
        for logprobs_L, prompt_S, response_T in zip(
            logprobs_RL, prompts_R, responses_R, strict=True
        )
    ]


def clipped_loss(model: PreTrainedModel, rows: Sequence[Row]) -> Tensor:
    """L = -1/N sum_n min(rho_n A_n, clip(rho_n, 1 - low, 1 + high) A_n),  rho = pi / pi_old.

    N is the number of response tokens of the whole optimizer step. Here a step is one forward pass,
    so a mean will do; with micro-batches N would still have to be the step's (update/step.py).
    """
    prompts_R, responses_R = [row.prompt_S for row in rows], [row.response_T for row in rows]
    logprobs_N = torch.cat(logprobs(model, prompts_R, responses_R))
    old_logprobs_N = torch.cat([row.old_logprobs_T for row in rows])
    A_N = torch.cat([torch.full_like(row.old_logprobs_T, row.advantage) for row in rows])
    ratio_N = torch.exp(logprobs_N - old_logprobs_N)
    bounded_N = ratio_N.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return -torch.minimum(ratio_N * A_N, bounded_N * A_N).mean()


# -- the loop ------------------------------------------------------------------------------------
def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train, print a line for every iteration, return their success rates."""
    parser = argparse.ArgumentParser(description="GRPO in one file, on the embedded model.")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--composer", choices=COMPOSERS, default="grouped")
    parser.add_argument("--tau", type=float, default=0.25, help="least share of a sign; 0 is off")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()  # no dropout
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0
    )
    waiting: list[list[Row]] = []  # groups not trained on yet, oldest first
    successes: list[float] = []
    print("iteration  success  rows +/-  waiting  split groups  seconds")
    for iteration in range(args.iterations):
        start = time.perf_counter()
        numbers = range(iteration * PROMPTS, (iteration + 1) * PROMPTS)
        problems_P = [make_problem("train", number, LEVELS, args.seed) for number in numbers]

        groups: list[list[Row]] = []
        prompts_P, responses_PG = sample(model, tokenizer, [item.problem for item in problems_P])
        for p, responses_G in enumerate(responses_PG):
            texts_G = tokenizer.batch_decode(responses_G, skip_special_tokens=True)
            rewards_G = [reward(text, problems_P[p].answer) for text in texts_G]
            advantages_G = advantages(np.array(rewards_G)).tolist()
            with torch.no_grad():  # scored by the trainer's own forward, before the policy changes
                old_G = logprobs(model, [prompts_P[p]] * GROUP_SIZE, responses_G)
            content_G = zip(responses_G, old_G, rewards_G, advantages_G, strict=True)
            groups.append(
                [Row(numbers[p], iteration, prompts_P[p], *content) for content in content_G]
            )

        if args.tau > 0:
            waiting = [group for group in waiting if iteration - group[0].born <= MAX_AGE]
            waiting += [group for group in groups if any(row.advantage for row in group)]
            batch, waiting = balance(waiting, args.tau)
        else:
            batch = [row for group in groups for row in group]

        plan = COMPOSERS[args.composer](batch, rng) if batch else []  # no batch yet: keep sampling
        for step in plan:
            optimizer.zero_grad()
            clipped_loss(model, [batch[i] for i in step]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        success = float(np.mean([row.reward for group in groups for row in group]))
        successes.append(success)
        print(
            f"{iteration + 1:9}  {success:7.0%}  {count([batch], +1):4}/{count([batch], -1):<3}"
            f"  {sum(map(len, waiting)):7}  {count_split_groups(batch, plan):12}"
            f"  {time.perf_counter() - start:7.1f}  {'#' * round(40 * success)}",
            flush=True,
        )
    quarter = -(-len(successes) // 4)
    first, last = np.mean(successes[:quarter]), np.mean(successes[-quarter:])
    print(
        f"success on new problems: first {quarter} iterations {first:.0%}, "
        f"last {quarter} {last:.0%}"
    )
    return successes


if __name__ == "__main__":
    main()
