"""SDPG: the step against autograd over the whole vocabulary, its schedule, and what it spares."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import by_autograd as by
import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from counterpoise.config import ModelConfig
from counterpoise.config.load import config_from_tables
from counterpoise.credit.hints import HINT_TEMPLATE
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy, load_policy, wrap_model
from counterpoise.model.scoring import forward
from counterpoise.types import Row
from counterpoise.update.graphs.passes import CapturedPasses
from counterpoise.update.rules.bind import BoundRule, OptimizerStepView
from counterpoise.update.rules.sdpg import REGULARISERS, TeacherTerm, rule, scheduled_beta

ROWS = by.told(tiny.rows(groups=3, size=4, seed=3))
STRONG = {"beta": 0.5, "alpha": 0.2}  # so that neither term drowns beside the other


def first(policy: Policy) -> nn.Module:
    """The weights a run began with: a little off those of today."""
    model = deepcopy(policy.model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_((0.02 * torch.randn(p.shape, generator=generator)).to(p))
    return model


def bound(
    policy: Policy, *, iteration: int = 1, micro: int = 10_000, iterations: int = 10, **settings
) -> BoundRule:
    reference = {name: p.detach() for name, p in first(policy).named_parameters()}
    reader = by.reader(policy, iteration, micro)
    return BoundRule(rule, settings, reader, by.PLAIN, iterations, reference)


def regulariser(name: str, w: Tensor) -> Tensor:
    return {
        "urkl": 0.5 * torch.log(w) ** 2,
        "ufkl": 1 / w + torch.log(w),
        "rkl": 0.5 * (torch.log(w) + 1) ** 2,
        "fkl": 1 / w,
    }[name]


def literal(
    policy: Policy, rows: list[Row], beta: float, alpha: float, reg: str = "urkl",
    right_only: bool = False, teacher: nn.Module | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(the loss, the added part of it), with all logits at once."""
    began = first(policy)
    plain, added = torch.zeros(()), torch.zeros(())
    for row in rows:
        c = row.content
        log_p = by.logprobs_TV(policy, row)
        logprobs = by.of_tokens(log_p, row)
        ratio = (logprobs - torch.from_numpy(row.old_logprobs)).exp()
        gain = torch.minimum(ratio * row.advantage, ratio.clamp(0.8, 1.28) * row.advantage)
        plain = plain - gain.sum()
        if c.answer and not (right_only and row.advantage <= 0):
            hint = policy.encode(HINT_TEMPLATE.format(problem=c.prompt, answer=c.answer))
            with torch.no_grad():
                log_q = by.logprobs_TV(policy, row, hint, model=teacher)
            for t in range(row.num_tokens):
                added = added + beta * (log_p[t].exp() * (log_p[t] - log_q[t])).sum()
        with torch.no_grad():
            started = by.of_tokens(by.logprobs_TV(policy, row, model=began), row)
        added = added + alpha * regulariser(reg, (logprobs - started).exp()).sum()
    tokens = sum(row.num_tokens for row in rows)
    return (plain + added) / tokens, added / tokens


@pytest.mark.parametrize("reg", REGULARISERS)
def test_the_step_is_the_one_of_the_formula(reg: str) -> None:
    policy = tiny.policy()
    loss, added = literal(policy, ROWS, 0.5, 0.2, reg)
    expected = by.gradient(loss, policy)
    result, found = by.stepped(policy, ROWS, bound(policy, reg=reg, **STRONG))
    assert by.relative(found, expected) < 1e-5
    assert result.loss == pytest.approx(float(loss), rel=1e-5)
    assert result.added_loss == pytest.approx(float(added), rel=1e-5)
    assert result.chosen_share == 1


@pytest.mark.parametrize("settings", [{"beta": 0.5, "alpha": 0.0}, {"beta": 0.0, "alpha": 0.2}])
def test_either_term_alone(settings: dict[str, float]) -> None:
    policy = tiny.policy("llama", tie_word_embeddings=False)
    loss, added = literal(policy, ROWS, **settings)
    expected = by.gradient(loss, policy)
    given = bound(policy, **settings)
    if not settings["alpha"]:
        given = replace(given, reference_weights=None)  # none is kept
    result, found = by.stepped(policy, ROWS, given)
    assert by.relative(found, expected) < 1e-5
    assert result.added_loss == pytest.approx(float(added), rel=1e-5)
    assert result.chosen_share == (settings["beta"] > 0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_teacher_of_other_weights(tied: bool) -> None:
    policy = tiny.policy("llama", tie_word_embeddings=tied)
    teacher = tiny.policy("llama", seed=5, tie_word_embeddings=tied).model
    loss, added = literal(policy, ROWS, 0.5, 0.2, teacher=teacher)
    expected = by.gradient(loss, policy)
    given = bound(policy, teacher_every=3, **STRONG)
    weights = {name: p.detach() for name, p in teacher.named_parameters()}
    given = replace(given, reader=replace(given.reader, teacher=weights))
    result, found = by.stepped(policy, ROWS, given)
    assert by.relative(found, expected) < 1e-5
    assert result.added_loss == pytest.approx(float(added), rel=1e-5)
    itself, _ = by.stepped(policy, ROWS, bound(policy, **STRONG))
    assert abs(itself.added_loss - result.added_loss) > 0.01


def test_only_right_rollouts_and_only_known_answers() -> None:
    policy, rows = tiny.policy(), list(ROWS)
    rows[0] = replace(rows[0], rollout=replace(rows[0].content, answer=""))
    for right_only in (True, False):
        loss, _ = literal(policy, rows, 0.5, 0.2, right_only=right_only)
        expected = by.gradient(loss, policy)
        result, found = by.stepped(policy, rows, bound(policy, right_only=right_only, **STRONG))
        assert by.relative(found, expected) < 1e-5
        told = [row for row in rows[1:] if row.advantage > 0 or not right_only]
        assert result.chosen_share == pytest.approx(tokens_of(told) / tokens_of(rows))


def test_rows_whose_tokens_all_weigh_nothing_keep_their_term() -> None:
    """As `high_entropy` and `gtpo` leave them: L is 0 there, D is not."""
    policy, rows = tiny.policy(), list(ROWS)
    _, added = literal(policy, rows, 0.5, 0.2)
    expected = by.gradient(added, policy)
    silent = [replace(row, weights_T=np.zeros(row.num_tokens, np.float32)) for row in rows]
    result, found = by.stepped(policy, silent, bound(policy, **STRONG))
    assert by.relative(found, expected) < 1e-5
    assert result.loss == result.added_loss == pytest.approx(float(added), rel=1e-5)
    mixed = [silent[0], *rows[1:]]
    result, _ = by.stepped(policy, mixed, bound(policy, **STRONG))
    assert result.added_loss == pytest.approx(float(added), rel=1e-5)
    spared, _ = by.stepped(policy, mixed, None)
    assert spared.rows == tuple(range(1, len(rows)))


def tokens_of(rows: list[Row]) -> int:
    return sum(row.num_tokens for row in rows)


@pytest.mark.parametrize("micro", [1, 25, 60])
@pytest.mark.parametrize("on_policy", [False, True])
def test_micro_batches_change_nothing(micro: int, on_policy: bool) -> None:
    policy = tiny.policy()
    whole, expected = by.stepped(policy, ROWS, bound(policy, **STRONG), on_policy=on_policy)
    config = replace(by.PLAIN, micro_tokens=micro)
    cut, found = by.stepped(
        policy, ROWS, bound(policy, micro=micro, **STRONG), config, on_policy=on_policy
    )
    assert by.relative(found, expected) < 1e-5
    assert cut.added_loss == pytest.approx(whole.added_loss, rel=1e-5)


def test_recomputed_layers_give_the_same() -> None:
    policy = tiny.policy()
    _, expected = by.stepped(policy, ROWS, bound(policy, **STRONG))
    config = replace(by.PLAIN, checkpointing=True)
    _, found = by.stepped(policy, ROWS, bound(policy, **STRONG), config)
    assert by.relative(found, expected) < 1e-6


def test_in_bfloat16_it_is_near_the_same() -> None:
    half = wrap_model("qwen3", tiny.policy().model.bfloat16(), tiny.Words())
    full = tiny.policy()
    _, exact = by.stepped(full, ROWS, bound(full, beta=5.0, alpha=0.0))
    result, found = by.stepped(half, ROWS, bound(half, beta=5.0, alpha=0.0))
    assert by.relative(found, exact) < 0.05
    with_reference, _ = by.stepped(half, ROWS, bound(half, beta=5.0, alpha=5.0))
    assert with_reference.added_loss > result.added_loss > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_is_near_float32() -> None:
    rows = by.told(tiny.rows(groups=6, size=8, seed=4, longest=90))
    gradients = []
    for dtype in ("float32", "bfloat16"):
        policy = load_policy(ModelConfig(device="cuda", dtype=dtype))
        _, found = by.stepped(
            policy, rows, bound(policy, beta=5.0, alpha=0.5), passes=CapturedPasses()
        )
        gradients.append(found)
    assert by.relative(gradients[1], gradients[0]) < 0.05


def test_a_hint_that_tells_nothing_adds_nothing() -> None:
    """The teacher's prompt is the student's: q is p, and D is 0."""
    policy = tiny.policy()
    prompts = {row.name: row.content.prompt_tokens for row in ROWS}
    drawn = TeacherTerm(policy, by.TEMPERATURE, 1.0, prompts, 0.0, REGULARISERS["urkl"], {})
    found = forward(policy, ROWS, by.TEMPERATURE)
    added = drawn(ROWS, found, found.logprobs_M.detach())
    assert float(added.detach().abs().max()) < 1e-5


def test_the_first_weights_pull_nowhere_at_the_start() -> None:
    """w = 1: urkl and ufkl have no slope there; rkl and fkl push, in opposite directions."""
    x = torch.zeros(1, requires_grad=True)
    slopes = {}
    for name, reg in REGULARISERS.items():
        (slope,) = torch.autograd.grad(reg(x).sum(), x)
        slopes[name] = float(slope)
    assert slopes == {"urkl": 0, "ufkl": 0, "rkl": 1, "fkl": -1}


@pytest.mark.parametrize(
    ("k", "warm", "decay", "share"),
    [
        (1, 0, 0, 1), (10, 0, 0, 1), (1, 4, 0, 0.25), (4, 4, 0, 1), (5, 4, 0, 1),
        (8, 0, 4, 0.5), (10, 0, 4, 0), (6, 0, 4, 1), (2, 4, 16, 0.5 * 0.5),
    ],
)  # fmt: skip
def test_the_schedule(k: int, warm: int, decay: int, share: float) -> None:
    assert scheduled_beta(2e-3, k, 10, warm, decay) == pytest.approx(2e-3 * share)


def test_when_beta_has_fallen_to_nothing_no_teacher_is_read() -> None:
    policy = tiny.policy()
    made = bound(policy, iteration=10, decay=4, alpha=0.0).for_step(0)(ROWS, on_policy=False)
    assert made.num_chosen == 0
    assert made.term.prompts == {}
    assert rule(OptimizerStepView([])).term is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("['reg=kl']", "unknown reg of sdpg 'kl'"),
        ("['beta=-1']", "0 or above"),
        ("['warm=0.5']", "warm is a whole number"),
        ("['gamma=1']", "unknown setting of sdpg"),
    ],
)
def test_what_cannot_be_is_refused(settings: str, message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        config_from_tables({}, ["credit.rule=sdpg", f"credit.rule_settings={settings}"])
