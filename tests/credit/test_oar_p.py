"""OAR-P against one forward pass a token, and what it costs."""

from __future__ import annotations

import answered
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.config.check_options import uses_old_oar_p_name
from counterpoise.config.load import load_config
from counterpoise.credit.answer_spans import locate_answers
from counterpoise.credit.bilevel import reshape_importance
from counterpoise.credit.oar_p import (
    approximate,
    choose_mask_spans,
    masking_importance,
    weights,
)
from counterpoise.credit.row_copies import OriginalRows, RowCopy
from counterpoise.errors import PoiseError
from counterpoise.model.scoring import pack_rows

ROWS = answered.rows()


def reference(policy, row, box, compare: str, spans: list[tuple[int, int]]) -> list[float]:
    """Whole sequences, masked one after the other, through transformers."""
    S, W = len(row.content.prompt_tokens), policy.decoder.unembedding
    end = box.content_start + 1 if compare == "last" else box.content_end

    def read(ids):
        e = policy.decoder.embedding(ids)
        return (
            answered.hidden(policy, row, e)[S + box.content_start - 1 : S + end - 1] @ W.T
        ).detach()

    ids = answered.ids(row)
    clean, found = read(ids), []
    for first, last in spans:
        masked = ids.clone()
        masked[S + first : S + last] = 0
        moved = read(masked)
        if compare == "answer_joint":
            at = torch.arange(end - box.content_start), ids[S + box.content_start : S + end]
            before, after = (float(torch.log_softmax(x, -1)[at].sum()) for x in (clean, moved))
            value = max(0.0, before - after)
        else:
            P0, P = (torch.softmax(x.mean(dim=0), dim=-1).tolist() for x in (clean, moved))
            value = sum(p * np.log(p / q) for p, q in zip(P0, P, strict=True))
        found += [value / (last - first)] * (last - first)
    return found


def each(n: int) -> list[tuple[int, int]]:
    return [(t, t + 1) for t in range(n)]


@pytest.mark.parametrize("compare", ["last", "answer_mean", "answer_joint"])
@pytest.mark.parametrize("tokens", [8, 60, 10_000])
def test_every_token_against_the_formula(compare: str, tokens: int) -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS, tokens)
    boxes = {i: box for i, box in enumerate(locate_answers(view)) if box and box.box_start}
    found = dict(masking_importance(view, boxes, compare, passes=0))
    assert sorted(found) == [0, 1, 4, 5, 6]
    for i, box in boxes.items():
        expected = reference(policy, ROWS[i], box, compare, each(box.box_start))
        np.testing.assert_allclose(found[i], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_spans_are_masked_together(architecture: str) -> None:
    policy = answered.policy(architecture=architecture)
    view = answered.view(policy, ROWS, 60)
    boxes = {i: box for i, box in enumerate(locate_answers(view)) if box and box.box_start}
    found = dict(masking_importance(view, boxes, "last", passes=2.5))
    wide = 0
    for i, box in boxes.items():
        tokens = ROWS[i].num_tokens + len(ROWS[i].content.prompt_tokens) / 4
        spans = choose_mask_spans(box.box_start, box.content_start, 1.5 * tokens)
        wide += any(end - start > 1 for start, end in spans)
        expected = reference(policy, ROWS[i], box, "last", spans)
        np.testing.assert_allclose(found[i], expected, rtol=1e-4, atol=1e-6)
    assert wide >= 2


def test_weights_are_the_reshaped_importance_of_reasoning() -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS)
    found = weights(view, quantile=0.4, boost=2.0)  # exact by default
    for row, box, w_T in zip(ROWS, locate_answers(view), found, strict=True):
        mark = box.box_start if box else 0
        assert w_T.dtype == np.float32
        assert w_T[mark:].tolist() == [1.0] * (row.num_tokens - mark)
        if mark:
            expected = np.array(reference(policy, row, box, "last", each(mark)))
            np.testing.assert_allclose(
                w_T[:mark], reshape_importance(expected, 0.4, 2.0), rtol=1e-3
            )
    assert np.ptp(found[0][:7]) > 0.1
    assert found[6].tolist() == [1.0] * 5  # one token of reasoning keeps its mass


@pytest.mark.parametrize(
    ("reasoning", "inputs", "budget", "expected"),
    [
        (4, 5, np.inf, [(0, 1), (1, 2), (2, 3), (3, 4)]),  # 5 + 4 + 3 + 2
        (4, 5, 14, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (4, 5, 13, [(0, 2), (2, 3), (3, 4)]),  # 2 + 3 of half the budget, then 5
        (6, 6, 18, [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]),  # 1 + 2 + 3, then 6 + 5
        (4, 5, 7, [(0, 3), (3, 4)]),  # 2, then 5
        (4, 5, 0, [(0, 4)]),  # one at least
        (1, 3, 0, [(0, 1)]),
    ],
)
def test_spans_that_a_budget_affords(reasoning, inputs, budget, expected) -> None:
    assert choose_mask_spans(reasoning, inputs, budget) == expected


@given(st.integers(1, 200), st.integers(0, 9), st.floats(0, 3000))
def test_spans_cover_the_reasoning_and_keep_to_the_budget(reasoning, beyond, budget) -> None:
    inputs = reasoning + beyond
    spans = choose_mask_spans(reasoning, inputs, budget)
    assert [t for span in spans for t in range(*span)] == list(range(reasoning))
    cost = sum(inputs - start for start, _ in spans)
    assert cost <= budget or len(spans) == 1 or cost - inputs <= budget / 2


def test_no_more_passes_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = answered.policy()
    rng = np.random.default_rng(0)
    rows = [
        answered.row(
            [*rng.integers(answered.WORD, 97, n).tolist(), *answered.box(3), answered.END],
            advantage=1.0 if i % 2 else -1.0,
            index=i,
            prompt=7,
        )
        for i, n in enumerate([30, 44, 61, 90])
    ]
    ran: list[int] = []
    real = type(policy.decoder).__call__

    def counted(self, tokens, *args, **kwargs):
        ran.append(len(tokens))
        return real(self, tokens, *args, **kwargs)

    monkeypatch.setattr(type(policy.decoder), "__call__", counted)
    batch = sum(row.num_tokens for row in rows) + 10
    approximate(answered.view(policy, rows, 1000))
    assert 5 * batch < sum(ran) <= 7 * batch
    ran.clear()
    weights(answered.view(policy, rows, 1000))
    assert sum(ran) > 20 * batch


def test_copies_go_on_from_what_is_kept() -> None:
    policy = answered.policy()
    originals = OriginalRows(policy, pack_rows(policy, ROWS[:6]))
    rng = np.random.default_rng(1)
    copies = [
        RowCopy(row, kept, rng.integers(1, 97, n).astype(np.int32))
        for row, kept, n in [(0, 3, 5), (1, 0, 2), (5, 9, 1), (4, 2, 14)]
    ]
    for sizes in ([3], [0, 1, 2, 3], [2, 0]):
        some = [copies[i] for i in sizes]
        whole = originals.run_copies(some, [(0, len(copy.tokens)) for copy in some])
        parts = whole.split([len(copy.tokens) for copy in some])
        for copy, states in zip(some, parts, strict=True):
            content = ROWS[copy.row].content
            kept = content.response_tokens[: copy.prefix_length]
            ids = np.concatenate((content.prompt_tokens, kept, copy.tokens)).astype(np.int64)
            e = policy.decoder.embedding(torch.from_numpy(ids))
            expected = answered.hidden(policy, ROWS[0], e)[-len(copy.tokens) :].detach()
            torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-5)
        asked = [(len(copy.tokens) // 2, len(copy.tokens)) for copy in some]
        ends = [states[slice(*span)] for states, span in zip(parts, asked, strict=True)]
        torch.testing.assert_close(originals.run_copies(some, asked), torch.cat(ends))
    assert list(originals.copy_batches(copies, 20)) == [[2, 1], [0], [3]]  # of about one length
    assert list(originals.copy_batches(copies[:1] * 5, 10)) == [[0, 1], [2, 3], [4]]
    assert list(originals.copy_batches(copies[3:] * 2, 10)) == [[0], [1]]  # one at least


def test_edges() -> None:
    policy = answered.policy()
    assert weights(answered.view(policy, [])) == []
    without = weights(answered.view(policy, [ROWS[2], ROWS[3], ROWS[7]]))
    assert [w_T.tolist() for w_T in without] == [[1.0] * 6, [1.0] * 5, [1.0]]
    for passes in (-1.0, 0.5, 1.0, np.nan):  # one span would hold all tokens, with equal weights
        with pytest.raises(PoiseError, match="leaves nothing for masking: choose above 1, or 0"):
            weights(answered.view(policy, ROWS), passes=passes)
    with pytest.raises(PoiseError, match="did you mean 'last'"):
        weights(answered.view(policy, ROWS), compare="lst")


def test_the_approximate_form_has_a_name_of_its_own() -> None:
    view = answered.view(answered.policy(), ROWS)
    rough, by_old_name = approximate(view, passes=2.5), weights(view, passes=2.5)
    for rough_T, old_T in zip(rough, by_old_name, strict=True):
        assert rough_T.tolist() == old_T.tolist()
    assert any(
        np.abs(rough_T - exact_T).max() > 0.05
        for rough_T, exact_T in zip(rough, weights(view), strict=True)
    )


def test_long_responses_need_the_approximate_form() -> None:
    long = ["sample.max_new_tokens=1024", "credit.weights=oar_p"]
    with pytest.raises(PoiseError, match="512 passes for a full response: choose oar_p_approxim"):
        load_config("demo", long)
    for passes in (0, 7):
        config = load_config("demo", [*long, f'credit.settings=["passes={passes}"]'])
        assert uses_old_oar_p_name(config) == bool(passes)  # said in one line when a run begins
    load_config("demo", [long[0], "credit.weights=oar_p_approximate"])
