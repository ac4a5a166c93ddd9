"""The chunked head: a plain log_softmax in value and gradient, without tokens x vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoise.model import head
from counterpoise.model.head import token_logprobs

N, V, D = 23, 61, 12


def inputs(dtype: torch.dtype = torch.float64, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(V, (n,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def plain(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    everything = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return everything.gather(1, targets[:, None])[:, 0], -(everything.exp() * everything).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("tokens_at_once", [1, 2, 22, 23, 24, 1000])
def test_values_and_gradients_in_double_precision(
    monkeypatch: pytest.MonkeyPatch, temperature: float, tokens_at_once: int
) -> None:
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", tokens_at_once * V)
    hidden, weight, targets = inputs()
    upstream = torch.linspace(-1, 2, N, dtype=torch.float64)
    logprobs, entropies = token_logprobs(hidden, weight, targets, temperature)
    ours = torch.autograd.grad((upstream * logprobs).sum(), (hidden, weight))
    expected, expected_entropies = plain(hidden, weight, targets, temperature)
    theirs = torch.autograd.grad((upstream * expected).sum(), (hidden, weight))
    assert logprobs.dtype == torch.float64
    torch.testing.assert_close(logprobs, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropies, expected_entropies, rtol=1e-12, atol=1e-12)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("tokens_at_once", [4, 1000])
def test_the_gradient_of_the_entropy(
    monkeypatch: pytest.MonkeyPatch, temperature: float, tokens_at_once: int
) -> None:
    """dH / dz = -pi (log pi + H), alone and together with that of the log-probabilities."""
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", tokens_at_once * V)
    hidden, weight, targets = inputs()
    for share in (0.0, 0.7):
        ours = token_logprobs(hidden, weight, targets, temperature, train_entropy=True)
        theirs = plain(hidden, weight, targets, temperature)
        upstream = torch.linspace(-1, 2, N, dtype=torch.float64)
        mixed = [(share * a + upstream * b).sum() for a, b in (ours, theirs)]
        gradients = [torch.autograd.grad(loss, (hidden, weight)) for loss in mixed]
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_gradient_by_finite_differences() -> None:
    hidden, weight, targets = inputs(n=4)

    def logprobs_of(h: Tensor, w: Tensor) -> Tensor:
        return token_logprobs(h, w, targets, 0.7)[0]

    assert torch.autograd.gradcheck(logprobs_of, (hidden, weight))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = inputs(torch.float32)
    whole, _ = token_logprobs(hidden, weight, targets)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 3 * V + 1)
    cut, _ = token_logprobs(hidden, weight, targets)
    torch.testing.assert_close(cut, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("n", "vocabulary", "elements", "expected"),
    [
        (5, 10, 20, [(0, 2), (2, 4), (4, 5)]),
        (4, 10, 20, [(0, 2), (2, 4)]),
        (3, 10, 9, [(0, 1), (1, 2), (2, 3)]),  # one token is the least, whatever the vocabulary
        (3, 10, 1000, [(0, 3)]),
        (0, 10, 20, []),
    ],
)
def test_chunk_boundaries(
    monkeypatch: pytest.MonkeyPatch, n: int, vocabulary: int, elements: int, expected: list
) -> None:
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", elements)
    chunks = head.token_chunks(torch.empty(n, 3), torch.empty(vocabulary, 3))
    assert [(c.start, c.stop) for c in chunks] == expected


def test_no_entropy_gradient() -> None:
    hidden, weight, targets = inputs()
    logprobs, entropies = token_logprobs(hidden, weight, targets)
    assert logprobs.requires_grad
    assert not entropies.requires_grad


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_a_frozen_input_gets_no_gradient(frozen: str) -> None:
    hidden, weight, targets = inputs()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    token_logprobs(hidden, weight, targets)[0].sum().backward()
    assert (hidden.grad is None) == (frozen == "hidden")
    assert (weight.grad is None) == (frozen == "weight")


def test_a_tied_weight_gets_both_gradients() -> None:
    """Embedding and unembedding may be one tensor: autograd adds the head's part to the rest."""
    _, weight, targets = inputs()
    logprobs, _ = token_logprobs(weight[:N], weight, targets)
    (ours,) = torch.autograd.grad(logprobs.sum(), weight)
    expected, _ = plain(weight[:N], weight, targets, 1.0)
    (theirs,) = torch.autograd.grad(expected.sum(), weight)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # CPUs without bfloat16 products fall back
def test_half_precision_gives_float32_and_extreme_logits_stay_finite() -> None:
    hidden, weight, targets = inputs(torch.bfloat16)
    logprobs, entropies = token_logprobs(hidden, weight, targets)
    assert logprobs.dtype == entropies.dtype == torch.float32
    expected, _ = plain(hidden.double(), weight.double(), targets, 1.0)
    torch.testing.assert_close(logprobs.double(), expected, rtol=0.05, atol=0.05)
    logprobs.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16

    hidden, weight, targets = inputs(torch.float32)
    logprobs, entropies = token_logprobs(hidden * 1e4, weight, targets)
    assert torch.isfinite(logprobs).all()
    assert torch.isfinite(entropies).all()


def test_uniform_and_certain_distributions() -> None:
    targets = torch.tensor([3])
    logprobs, entropies = token_logprobs(torch.zeros(1, D), torch.randn(V, D), targets)
    torch.testing.assert_close(logprobs, -torch.log(torch.tensor([float(V)])))
    torch.testing.assert_close(entropies, torch.log(torch.tensor([float(V)])))
    weight = torch.zeros(V, D)
    weight[3, 0] = 1.0
    hidden = torch.zeros(1, D)
    hidden[0, 0] = 200.0
    logprobs, entropies = token_logprobs(hidden, weight, targets)
    assert logprobs.item() == 0.0
    assert entropies.item() == pytest.approx(0.0, abs=1e-6)


class Largest(TorchDispatchMode):
    """Sees every tensor that any operation, forward or backward, makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_never_tokens_times_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, vocabulary, width, chunk = 700, 3000, 8, 40_000
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", chunk)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,))
    with Largest() as seen:
        logprobs, _ = token_logprobs(hidden, weight, targets)
        logprobs.sum().backward()
    assert seen.elements <= chunk  # tokens * vocabulary would be 2,100,000
    with Largest() as seen:  # the measure itself: a plain head makes them all
        plain(hidden, weight, targets, 1.0)
    assert seen.elements == tokens * vocabulary


def test_what_is_kept_for_the_backward_is_linear_in_tokens() -> None:
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    hidden, weight, targets = inputs()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_logprobs(hidden, weight, targets)
    assert sorted(kept) == sorted([N * D, V * D, N, N])  # the targets, and their logsumexp
