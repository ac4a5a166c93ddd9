"""The user's reward functions with a time limit: one process for all of them, and what if it fails.

    one response per call   a response whose call hangs, or kills the process twice, has no reward:
                            nan, so it takes no part in its group. It is counted in
                            verifier_timeouts or verifier_crashes, and rollouts/ has "lost"
    lists, TRL's, async     the call has the rewards of all responses, so the run ends with one
                            line and can be resumed

A process that dies is started again and the call repeated once: something else on the machine may
have killed it. `verify.reward_timeout_seconds = 0` runs functions in the main process instead, as
those need that share state with other plugins or with this program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from counterpoise import plugins
from counterpoise.config import VerifyConfig
from counterpoise.errors import PoiseError, format_count
from counterpoise.types import Prompt
from counterpoise.variants import VERIFIERS
from counterpoise.verify.plugin_reward import PluginVerifier, bind_verifier
from counterpoise.verify.reward_process import (
    CallFailedError,
    RewardProcess,
    encode_request,
    shared_process,
)
from counterpoise.verify.reward_signatures import LISTS, TRL, reward_arguments
from counterpoise.verify.scores import (
    NO_CONTEXT,
    ContextVerifier,
    Scores,
    ScoringContext,
    Verifier,
)

# How a command calls the limit, and how it continues, for the message of a function that is slow.
IN_A_RUN = ("verify.reward_timeout_seconds", "--resume continues")
IN_AN_EVALUATION = ("--reward-timeout", "the same command continues")
MAX_LOST = 3  # responses of one round without a reward; more, and the function is at fault
NEVER = -1


def make_verifier(options: VerifyConfig, wording: tuple[str, str] = IN_A_RUN) -> Verifier:
    """The verifier of a run, with its limits."""
    if plugins.is_plugin(options.name):
        return make_reward(options.name, options, wording)
    verifier: Verifier = VERIFIERS.load(options.name)(options.timeout_seconds, options.workers)
    return verifier


def make_reward(name: str, options: VerifyConfig, wording: tuple[str, str] = IN_A_RUN) -> Verifier:
    """A reward function of the user's, in a process of its own unless the options say otherwise."""
    verifier = bind_verifier(name)()
    if options.reward_timeout_seconds and isinstance(verifier, PluginVerifier):
        process = shared_process(options.reward_timeout_seconds)
        return LimitedReward(name, verifier, process, wording)
    return verifier


@dataclass(frozen=True, slots=True)
class ResponseBatch:
    """Responses with their problems: what one round scores."""

    responses: Sequence[str]
    prompts: Sequence[Prompt]
    context: ScoringContext

    def slice(self, start: int, stop: int) -> ResponseBatch:
        token_ids = self.context.token_ids
        context = replace(self.context, token_ids=token_ids and token_ids[start:stop])
        return ResponseBatch(self.responses[start:stop], self.prompts[start:stop], context)


class LimitedReward(ContextVerifier):
    """A user's function in its process; `fallback` scores what cannot be sent there."""

    def __init__(
        self,
        name: str,
        fallback: PluginVerifier,
        process: RewardProcess,
        wording: tuple[str, str] = IN_A_RUN,
    ) -> None:
        self._name, self._fallback, self._process = name, fallback, process
        self._limit_name, self._continuation = wording
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
        """Score all responses in one call, or in several if some are lost."""
        batch = ResponseBatch(responses, prompts, context)
        return self._score(batch, lost_before=0, crashed_at=NEVER)

    def close(self) -> None:
        """End the process; a later call starts another."""
        self._process.close()

    def _score(self, batch: ResponseBatch, *, lost_before: int, crashed_at: int) -> Scores:
        request = encode_request(self._name, batch.responses, batch.prompts, batch.context)
        if request is None:
            return self._fallback.score_in_context(batch.responses, batch.prompts, batch.context)
        try:
            reply = self._process.call(request)
        except CallFailedError as failure:
            failed, num_responses = failure.scored, len(batch.responses)
            if failure.kind == "crash" and crashed_at != failed and crashed_at < num_responses:
                # Where it died again at another response, the second try is the last.
                next_crash = failed if crashed_at == NEVER else num_responses
                return self._score(batch, lost_before=lost_before, crashed_at=next_crash)
            self._check_loss(failure, num_responses, lost_before)
            # No reply has the rewards of the responses before it, so they are scored again.
            rewards_before = self._score_part(batch.slice(0, failed), lost_before + 1)
            later = self._score_part(batch.slice(failed + 1, num_responses), lost_before + 1)
            return rewards_before.concatenate(_lost_scores(failure.kind)).concatenate(later)
        if "error" in reply:
            raise PoiseError(reply["error"])
        return Scores(**reply)

    def _score_part(self, batch: ResponseBatch, lost_before: int) -> Scores:
        if not batch.responses:
            return Scores([])
        return self._score(batch, lost_before=lost_before, crashed_at=NEVER)

    def _check_loss(self, failure: CallFailedError, num_responses: int, lost_before: int) -> None:
        """End the run if the rewards of many responses would be lost."""
        if self._one_by_one and failure.scored < num_responses and lost_before < MAX_LOST:
            return
        scope = format_count(num_responses, "response")
        if self._one_by_one:
            scope = f"{lost_before + 1} responses"
        outcome = "ended its process"
        if failure.kind == "timeout":
            limit = self._process.limit_seconds
            outcome = f"did not return within {self._limit_name}={limit:g}"
        raise PoiseError(
            f"{self._label} {outcome} for {scope}: mend it, or raise the limit; what was written "
            f"before is intact, and {self._continuation}"
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
