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
from dataclasses import dataclass, replace
from typing import NamedTuple

from counterpoise import plugins
from counterpoise.errors import PoiseError, format_count
from counterpoise.types import Prompt
from counterpoise.verify.plugin_reward import PluginVerifier
from counterpoise.verify.reward_process import CallFailedError, RewardProcess, encode_request
from counterpoise.verify.reward_signatures import LISTS, TRL, reward_arguments
from counterpoise.verify.scores import NO_CONTEXT, ContextVerifier, Scores, ScoringContext

MAX_LOST = 3  # responses of one batch without a reward; more, and the function is at fault
MAX_REPEATS = 2  # of a request whose process died


class LimitWording(NamedTuple):
    """Words for the error message of a function that is slow."""

    limit_name: str  # what the user knows the limit as
    continuation: str  # how to go on after it


IN_A_RUN = LimitWording("verify.reward_timeout_seconds", "--resume continues")
IN_AN_EVALUATION = LimitWording("--reward-timeout", "the same command continues")


@dataclass(frozen=True, slots=True)
class ResponseBatch:
    """Responses with their problems: those of one `score_in_context`, or a slice of them."""

    responses: Sequence[str]
    prompts: Sequence[Prompt]
    context: ScoringContext

    def slice(self, start: int, stop: int) -> ResponseBatch:
        token_ids = self.context.token_ids
        context = replace(self.context, token_ids=token_ids and token_ids[start:stop])
        return ResponseBatch(self.responses[start:stop], self.prompts[start:stop], context)


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

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        """Score without a context; without prompts, only responses and answers are known."""
        known_prompts = prompts or [Prompt("", "", answer) for answer in answers]
        return self.score_in_context(responses, known_prompts, NO_CONTEXT)

    def score_in_context(
        self, responses: Sequence[str], prompts: Sequence[Prompt], context: ScoringContext
    ) -> Scores:
        """Score all responses by one request, or by several if some are lost."""
        return self._score(ResponseBatch(responses, prompts, context))

    def close(self) -> None:
        """End the process, which all reward functions share; a later request starts another."""
        self._process.close()

    def _score(
        self,
        batch: ResponseBatch,
        *,
        num_lost: int = 0,
        last_crash: int | None = None,
        repeats_left: int = MAX_REPEATS,
    ) -> Scores:
        """Score a batch, again if the process dies.

        `num_lost` responses of the whole batch, of which this one may be a slice, are lost already.
        `last_crash` is the index in this batch at which the process died the last time; None if it
        has not died on this batch yet.
        """
        if not batch.responses:
            return Scores([])
        request = encode_request(self._name, batch.responses, batch.prompts, batch.context)
        if request is None:
            return self._fallback.score_in_context(batch.responses, batch.prompts, batch.context)
        try:
            reply = self._process.exchange(request)
        except CallFailedError as failure:
            failed_index, num_responses = failure.scored, len(batch.responses)
            if failure.kind == "crash" and repeats_left and failed_index != last_crash:
                return self._score(
                    batch,
                    num_lost=num_lost,
                    last_crash=failed_index,
                    repeats_left=repeats_left - 1,
                )
            num_lost += 1
            self._check_loss(failure, num_responses, num_lost)
            # The rewards of the responses before the lost one were never sent: score them again.
            earlier = self._score(batch.slice(0, failed_index), num_lost=num_lost)
            num_lost += earlier.timeouts + earlier.crashes
            later = self._score(batch.slice(failed_index + 1, num_responses), num_lost=num_lost)
            return earlier.concatenate(_lost_scores(failure.kind)).concatenate(later)
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
