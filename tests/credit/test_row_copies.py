"""What copies look at where nothing is padded, against padded attention."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import answered
import copies_by_hand
import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import ModelConfig
from counterpoise.credit import row_copies as originals_module
from counterpoise.credit.answer_spans import locate_answers
from counterpoise.credit.oar_p import masking_importance
from counterpoise.credit.row_copies import OriginalRows, RowCopy
from counterpoise.model.load import load_policy
from counterpoise.model.scoring import pack_rows

ROWS = answered.rows()


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies as on a GPU in half precision, the kernel written out."""
    by_hand = SimpleNamespace(
        attend_copies=copies_by_hand.attend,
        make_copy_blocks=lambda spans_C8, group, device: spans_C8,
    )
    monkeypatch.setitem(sys.modules, "counterpoise.model.kernels.copies", by_hand)
    monkeypatch.setattr(originals_module, "is_half_on_gpu", lambda x: True)


def test_copies_look_at_their_past_the_prompt_and_what_they_keep(fused: None) -> None:
    policy = answered.policy()
    originals = OriginalRows(policy, pack_rows(policy, ROWS))
    assert not originals.pads_attention
    some = [
        RowCopy(r, kept, ROWS[r].content.response_tokens[kept:-1] + 1)
        for r, kept in [(0, 0), (0, 3), (1, 9), (1, 1), (5, 0), (5, 6)]
    ]
    asked = [(len(copy.tokens) - 1, len(copy.tokens)) for copy in some]
    asked[2] = (0, len(some[2].tokens))
    found = originals.run_copies(some, asked)
    originals.pads_attention = True
    torch.testing.assert_close(found, originals.run_copies(some, asked), rtol=1e-9, atol=1e-9)


def test_passes_without_padding_take_copies_as_they_come(fused: None) -> None:
    policy = answered.policy()
    originals = OriginalRows(policy, pack_rows(policy, ROWS))
    some = [RowCopy(1, kept, ROWS[1].content.response_tokens[kept:-1]) for kept in (0, 5, 2, 9)]
    assert [len(copy.tokens) for copy in some] == [20, 15, 18, 11]
    assert list(originals.copy_batches(some, 5)) == [[0, 1], [2, 3]]  # at most 40 tokens
    originals.pads_attention = True
    assert list(originals.copy_batches(some, 10)) == [[3], [1], [2], [0]]


@pytest.mark.parametrize("compare", ["last", "answer_mean", "answer_joint"])
def test_oar_p_without_padding(compare: str, fused: None, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS, 60)
    boxes = {i: box for i, box in enumerate(locate_answers(view)) if box and box.box_start}
    found = dict(masking_importance(view, boxes, compare, passes=3))
    monkeypatch.setattr(originals_module, "is_half_on_gpu", lambda x: False)
    expected = dict(masking_importance(view, boxes, compare, passes=3))
    for i in boxes:
        np.testing.assert_allclose(found[i], expected[i], rtol=1e-5, atol=1e-8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernel_is_near_padded() -> None:
    policy = load_policy(ModelConfig(device="cuda", dtype="bfloat16"))
    rows = [replace(row, advantage=1.0) for row in tiny.rows(groups=3, size=4, longest=90)]
    originals = OriginalRows(policy, pack_rows(policy, rows))
    some = [
        RowCopy(r, kept, row.content.response_tokens[kept:-1])
        for r, row in enumerate(rows)
        for kept in range(0, row.num_tokens - 1, 7)
    ]
    asked = [(max(0, len(copy.tokens) - 3), len(copy.tokens)) for copy in some]
    found = originals.run_copies(some, asked).float()
    originals.pads_attention = True
    expected = originals.run_copies(some, asked).float()
    assert float((found - expected).norm() / expected.norm()) < 0.02
