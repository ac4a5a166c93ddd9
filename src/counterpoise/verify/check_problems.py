"""Check before a run that its verifier can use the answers of the problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt
from counterpoise.verify.code.checks import parse_tests
from counterpoise.verify.last_number import check_number

# The other verifiers compare any text with any other.
ANSWER_CHECKS: Mapping[str, Callable[[str], object]] = {
    "code": parse_tests,
    "last_number": check_number,
}


def check_problems(verifier: str, prompts: Iterable[Prompt]) -> None:
    """Raise an error that names the first problem whose answer the verifier cannot use."""
    if verifier not in ANSWER_CHECKS:
        return
    for prompt in prompts:
        try:
            ANSWER_CHECKS[verifier](prompt.answer)
        except PoiseError as fault:
            raise PoiseError(f"problem '{prompt.id}': {fault}") from None
