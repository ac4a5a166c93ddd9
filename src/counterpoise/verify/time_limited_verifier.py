"""The user's reward functions with a time limit, and what happens if their process fails.

    one response per call   a response whose call hangs, or kills the process on the retry too
                            (see below), has no reward: nan, so it takes no part in its group. It is
                            counted in verifier_timeouts or verifier_crashes, and rollouts/ has
                            "lost"
    lists, TRL's, async     one call returns all rewards, so none can be kept: the run stops with
                            a one-line error and can be resumed

A process that dies is started again and the responses are scored again, because something else on
the machine may have killed it. If it dies at the same response twice in a row, or a third time at
any response, that response is lost. `verify.reward_timeout_seconds = 0` runs functions in the main
process instead; set it for functions that share state with other plugins or with this program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from counterpoise import plugins
from counterpoise.errors import PoiseError, format_count
from counterpoise.types import Prompt
from counterpoise.verify.plugin_reward import PluginVerifier
from counterpoise.verify.reward_process import CallFailedError, RewardProcess, encode_request
from counterpoise.verify.reward_signatures import LISTS, TRL, reward_arguments
from counterpoise.verify.scores import ContextVerifier, Scores, ScoringContext

MAX_LOST = 3  # responses of one batch without a reward; more, and the function is at fault
MAX_REPEATS = 2  # of a request whose process died


class LimitWording(NamedTuple):
    """Words for the error message of a function that is slow."""

    limit_name: str  # what the user knows the limit as
    continuation: str  # how to go on after it


IN_A_RUN = LimitWording("verify.reward_timeout_seconds", "--resume continues")
IN_AN_EVALUATION = LimitWording("--reward-timeout", "the same command continues")


class TimeLimitedVerifier(ContextVerifier):
    """A user's function in its process; `fallback` scores what cannot be sent there."""

    def __init__(
        self,
        name: str,
        fallback: PluginVerifier,
        process: RewardProcess,
        wording: LimitWording = IN_A_RUN,
    ) -> None:
        self._name, self._fallback, self._process = name, fallback, process
        self._wording = wording
        self._label = plugins.display_name(name)
        self._one_by_one = (
            reward_arguments(name).style not in (LISTS, TRL)
            and not plugins.load_plugin(name).is_async
        )

    def score_in_context(
        self, responses: Sequence[str], prompts: Sequence[Prompt], context: ScoringContext
    ) -> Scores:
        """Score all responses by one request, or by several if some are lost."""
        scores_by_start: dict[int, Scores] = {}  # of pieces and of lost responses
        num_lost = 0
        pieces = [range(len(responses))]  # not scored yet; the last is next
        while pieces:
            piece = pieces.pop()
            if not piece:
                continue
            part, token_ids = slice(piece.start, piece.stop), context.token_ids
            part_context = replace(context, token_ids=token_ids and token_ids[part])
            try:
                scores_by_start[piece.start] = self._score_piece(
                    responses[part], prompts[part], part_context
                )
            except CallFailedError as failure:
                num_lost += 1
                self._check_loss(failure, len(piece), num_lost)
                lost = piece.start + failure.scored
                scores_by_start[lost] = _lost_scores(failure.kind)
                # The rewards of the responses before it were never sent: they are scored again.
                pieces += [range(lost + 1, piece.stop), range(piece.start, lost)]
        in_order = [scores for _, scores in sorted(scores_by_start.items())]
        return reduce(Scores.concatenate, in_order, Scores([]))

    def close(self) -> None:
        """End the process, which all reward functions share; a later request starts another."""
        self._process.close()

    def _score_piece(
        self, responses: Sequence[str], prompts: Sequence[Prompt], context: ScoringContext
    ) -> Scores:
        """Score by one request, which is repeated if the process dies.

        Raises CallFailedError if a response is lost.
        """
        request = encode_request(self._name, responses, prompts, context)
        if request is None:
            return self._fallback.score_in_context(responses, prompts, context)
        crashes: list[int] = []  # the responses at which the process has died
        while True:
            try:
                reply = self._process.exchange(request)
                break
            except CallFailedError as failure:
                died_here_before = crashes[-1:] == [failure.scored]
                if failure.kind != "crash" or died_here_before or len(crashes) == MAX_REPEATS:
                    raise
                crashes.append(failure.scored)
        if "error" in reply:
            raise PoiseError(reply["error"])
        return Scores(**reply)

    def _check_loss(self, failure: CallFailedError, num_responses: int, num_lost: int) -> None:
        """End the run if the rewards of many responses would be lost."""
        if self._one_by_one and failure.scored < num_responses and num_lost <= MAX_LOST:
            return
        scope = format_count(num_lost if self._one_by_one else num_responses, "response")
        outcome, remedy = "ended its process", "mend it"
        if failure.kind == "timeout":
            limit = self._process.limit_seconds
            outcome = f"did not return within {self._wording.limit_name}={limit:g}"
            remedy = "mend it, or raise the limit"
        raise PoiseError(
            f"{self._label} {outcome} for {scope}: {remedy}; what was written before is intact, "
            f"and {self._wording.continuation}"
        )


def count_lost_as_wrong(scores: Scores) -> list[float]:
    """The rewards, with 0 for responses that the limit or a crash has left without one."""
    logged = scores.logged or [{}] * len(scores.rewards)
    return [
        0.0 if "lost" in entries and math.isnan(reward) else reward
        for reward, entries in zip(scores.rewards, logged, strict=True)
    ]


def _lost_scores(kind: str) -> Scores:
    return Scores(
        [math.nan],
        timeouts=int(kind == "timeout"),
        crashes=int(kind == "crash"),
        logged=[{"lost": kind}],
    )
