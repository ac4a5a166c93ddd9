"""How an outcome depends on the tokens that came before it: dJ/de_t, e_t the embedding of token t.

    J = sum of the rows' objectives        one forward and one backward for all rows of a pass

No row sees another's response, so dJ/de_t is the gradient of t's own row. Nothing is computed that
J does not need: no gradient of a weight, a third of a training step's matrix products; no backward
through prompts, whose keys and values are constants, computed once for all their responses;
responses only as far as the objective looks; of the last layer only what the objective looks at,
and the keys and values of the rest. Only one number a token is kept.

On a GPU in half precision prompts and whole layers stay in: there the packed pass, a layer of which
is one node of the graph (`policy/layer.py`), is the quicker one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoise.credit.copies import Copy, Originals, Span
from counterpoise.credit.spans import places
from counterpoise.credit.view import View
from counterpoise.policy.attention import PackedAttention
from counterpoise.policy.kernels import on_gpu
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import pack
from counterpoise.policy.transfer import to_device
from counterpoise.types import Floats, Row
from counterpoise.update.forward import micro_batches, packed

AT_ONCE = 1024  # tokens side by side on a CPU: larger products gain less than padding costs


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Some rows as the policy read them. n: the tokens their objectives look at, row after row."""

    rows: Sequence[int]  # of the view
    spans: Sequence[Span]  # of each row, among the n
    hidden_n: Tensor  # [n, D], what the distribution of each token is computed from
    targets_n: Tensor  # the tokens themselves


Objective = Callable[[Pass], Tensor]  # -> J, or any scalar with its gradient
Measure = Callable[[Tensor, Tensor], Tensor]  # (dJ/de [n, D], e [n, D]) -> [n]
Noise = Callable[[int, int], Tensor]  # (row, D) -> [n, D], for the first n tokens of its response


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One row, cut after what its objective looks at."""

    name: int  # of the view
    row: Row
    start: int  # the first token it looks at, 1 at least: the first one hangs on none before it

    @property
    def places(self) -> Span:
        """Where these tokens are predicted, among the inputs."""
        return self.start - 1, self.row.num_tokens - 1


def saliency(
    view: View,
    asked: Mapping[int, Span],
    objective: Objective,
    measure: Measure,
    noise: Noise | None = None,
) -> dict[int, Floats]:
    """Row -> [T]: `measure` of every token that is an input of the row's objective, else 0.

    `asked` names the rows, and the tokens of each that the objective looks at.
    """
    policy, reader = view.policy, view.reader
    assert reader is not None
    taken = [
        Asked(i, cut(view.rows[i], end), max(1, start))
        for i, (start, end) in asked.items()
        if end > 1
    ]
    rows = [one.row for one in taken]
    one_pass = _packed if on_gpu(policy.decoder.unembedding) else _after_prompts

    def attempt(micro_tokens: int) -> dict[int, Floats]:
        found = {i: np.zeros(view.rows[i].num_tokens, dtype=np.float32) for i in asked}
        for batch in micro_batches(rows, micro_tokens):
            some = [taken[i] for i in batch]
            for part, run in one_pass(policy, some, micro_tokens):
                values_n = _measured(policy, part, run, objective, measure, noise)
                for one, values_T in zip(part, values_n, strict=True):
                    found[one.name][: len(values_T)] = values_T
        return found

    with weights_fixed(policy.model):
        return reader.micro.rows(attempt, rows) if rows else attempt(1)


def cut(row: Row, stop: int) -> Row:
    """A row that ends after `stop` tokens."""
    content = row.content
    shorter = replace(
        content,
        response_tokens=content.response_tokens[:stop],
        sampled_logprobs=content.sampled_logprobs[:stop],
    )
    return replace(row, num_tokens=stop, rollout=shorter, weights_T=None, scored_T=None)


Run = Callable[[Tensor], Tensor]  # embeddings of the rows' inputs [N, D] -> hidden states [n, D]


def _measured(
    policy: Policy,
    part: Sequence[Asked],
    run: Run,
    objective: Objective,
    measure: Measure,
    noise: Noise | None,
) -> list[Floats]:
    """Per row, of each of its inputs."""
    inputs = [one.row.content.response_tokens[:-1] for one in part]
    lengths = [len(tokens) for tokens in inputs]
    with torch.no_grad():
        flat_N = to_device(np.concatenate(inputs), policy.device, np.int64)
        embedded_N = F.embedding(flat_N, policy.decoder.embedding.weight)
        leaf_N = embedded_N.clone()
        if noise is not None:
            for one, rest_N in zip(part, leaf_N.split(lengths), strict=True):
                more = noise(one.name, leaf_N.shape[1])[: len(rest_N)]
                rest_N[: len(more)] += more.to(leaf_N.dtype)
    seen = [one.row.content.response_tokens[one.start :] for one in part]
    bounds = np.cumsum([0, *map(len, seen)]).tolist()
    with torch.enable_grad():
        hidden_n = run(leaf_N.requires_grad_())
        targets_n = to_device(np.concatenate(seen), policy.device, np.int64)
        read = Pass([one.name for one in part], list(pairwise(bounds)), hidden_n, targets_n)
        (gradient_N,) = torch.autograd.grad(objective(read), leaf_N)
    wide = torch.promote_types(leaf_N.dtype, torch.float32)
    values_N = measure(gradient_N.to(wide), embedded_N.to(wide))
    return np.split(values_N.float().cpu().numpy(), np.cumsum(lengths)[:-1])


def _after_prompts(
    policy: Policy, asked: Sequence[Asked], micro_tokens: int
) -> Iterator[tuple[list[Asked], Run]]:
    """Rows of about one length side by side, after the keys and values of their prompts."""
    contents = [one.row.content for one in asked]
    prompts = [content.prompt_tokens for content in contents]
    packing = pack(prompts, [c.response_tokens[:1] for c in contents], policy.device)
    policy.decoder.reserve(packing.longest)
    originals = Originals(policy, packing)
    copies = [Copy(r, 0, content.response_tokens[:-1]) for r, content in enumerate(contents)]
    if policy.device.type == "cpu":
        micro_tokens = min(micro_tokens, AT_ONCE)
    for batch in originals.batches(copies, micro_tokens):
        part, some = [asked[i] for i in batch], [copies[i] for i in batch]

        def run(leaf_N: Tensor, part: list[Asked] = part, some: list[Copy] = some) -> Tensor:
            return originals.run(some, [one.places for one in part], leaf_N)

        yield part, run


def _packed(
    policy: Policy, asked: Sequence[Asked], micro_tokens: int
) -> Iterator[tuple[list[Asked], Run]]:
    """All rows as a training step packs them, prompts and all."""
    packing = packed(policy, [one.row for one in asked])
    firsts = [first for first, _ in packing.responses]
    spans = zip(firsts, (one.places for one in asked), strict=True)
    wanted = [(first + start, first + end) for first, (start, end) in spans]

    def run(leaf_N: Tensor) -> Tensor:
        """Responses come after all prompts, in the order of the rows."""
        prompts_N = F.embedding(packing.tokens_N[: firsts[0]], policy.decoder.embedding.weight)
        hidden_N = policy.decoder(
            packing.tokens_N,
            packing.positions_N,
            PackedAttention(packing),
            embedded_N=torch.cat((prompts_N, leaf_N)),
        )
        return hidden_N[places(wanted, policy.device)]

    yield list(asked), run


@contextmanager
def weights_fixed(model: nn.Module) -> Iterator[None]:
    """No gradient of a weight is taken inside."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)
