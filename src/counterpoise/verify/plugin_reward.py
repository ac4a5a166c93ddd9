"""A user's Python function as the verifier, or as an extra reward.

    def score(responses, answers, ...): return rewards

The names of its parameters decide in which of four forms it is called (reward_signatures.py):

    lists         all responses in one call    returns one finite number per response, in order, as
                                               a list or a one-dimensional array
    TRL's         the same, all by keyword     the same
    verl's        one response in each call    a number, or {"score": number, ...}
    one sample    one response in each call    a number

In every form but the first, None instead of a number means that the reward does not apply to the
response: its reward is nan, and its group is credited without it. A function may be an `async def`.

It runs in a process of its own (time_limited_verifier.py), on however many responses are at hand:
those of an iteration, of an evaluation, or a single one (`--engine verl`). So the reward of a
response may depend only on that response and its problem. A call may last up to
`verify.reward_timeout_seconds`; `verify.timeout_seconds` and `verify.workers` do not apply. An
exception it raises ends the run. With a limit of 0, `PluginVerifier` calls it directly in this
process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise import plugins
from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.types import NO_COLUMNS, Ints, Message, Prompt
from counterpoise.verify.reward_signatures import (
    ANSWERS,
    DATA_SOURCE,
    EXTRA_INFO,
    GROUND_TRUTH,
    LISTS,
    LOG_EXTRA,
    LOG_METRIC,
    MESSAGES,
    POSITIONAL_SOURCES,
    PROMPTS,
    RESPONSES,
    SAMPLE,
    SOLUTION,
    SOURCE_OF_PARAMETER,
    TOKEN_IDS,
    TRAINER_STATE,
    TRL,
    VERL,
    RewardArguments,
    reward_arguments,
)
from counterpoise.verify.scores import (
    ContextVerifier,
    Scores,
    ScoringContext,
    TrainerState,
    are_binary,
)

# Above this size the square of a reward, and so the standard deviation of its group, may overflow.
LARGEST_REWARD = 1e100
# TRL's **kwargs hold these besides the columns of the problems.
TRL_KEYWORDS = (PROMPTS, "completions", TOKEN_IDS, TRAINER_STATE, LOG_EXTRA, LOG_METRIC)
UNAVAILABLE = object()
# (keywords of each call) -> results
CallEach = Callable[[Sequence[Mapping[str, Any]]], list[Any]]


def bind_verifier(name: str, call_each: CallEach | None = None) -> Callable[..., PluginVerifier]:
    """A function that makes the PluginVerifier, with the parameters that VERIFIERS expects.

    `call_each` replaces the loop over responses, for a function that scores one at a time.
    """
    function = plugins.load_plugin(name)
    arguments = reward_arguments(name)  # a signature that cannot be called is refused here

    # Time limit and workers are for verifiers with processes of their own.
    def construct(timeout_seconds: float = 0, workers: int = 0) -> PluginVerifier:
        return PluginVerifier(
            function.call,
            str(plugins.parse_plugin_name(name)),
            arguments,
            call_each=call_each or function.call_each,
            graded=function.graded,
        )

    return construct


def training_context(
    config: RunConfig, iterations_done: int, token_ids: Sequence[Sequence[int] | Ints] | None = None
) -> ScoringContext:
    """What reward functions may read about a run that has finished `iterations_done` iterations."""
    state = TrainerState(
        iterations_done * config.max_steps_per_iteration, config.max_optimizer_steps
    )
    # verl's functions expect a hub id without its configuration: openai/gsm8k.
    is_hub = config.task.name == "hub"
    data_source = config.task.path.partition(":")[0] if is_hub else config.task.name
    return ScoringContext(token_ids, state, data_source)


class PluginVerifier(ContextVerifier):
    """Scores responses with a user's function.

    Example:
        >>> score = lambda responses, answers: [len(text) / 2 for text in responses]
        >>> PluginVerifier(score, "my_rewards.py:score").score(["abc", ""], ["1", "2"]).rewards
        [1.5, 0.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: RewardArguments | None = None,
        *,
        call_each: CallEach | None = None,
        graded: bool = False,
    ) -> None:
        self._function, self._name = function, name
        self._arguments = arguments or RewardArguments()
        self._call_each = call_each or (lambda calls: [function(**call) for call in calls])
        self._graded = graded

    def score_in_context(
        self, responses: Sequence[str], prompts: Sequence[Prompt], context: ScoringContext
    ) -> Scores:
        """Call the function for all responses, and check what it returns."""
        call = RewardCall(self._name, self._arguments, responses, prompts, context)
        style = self._arguments.style
        if style in (LISTS, TRL):
            returned = self._function(*call.positional_lists(), **call.keyword_lists())
        else:
            returned = self._call_each(call.keywords_of_each())
            if style == VERL:
                returned = [call.take_score(i, result) for i, result in enumerate(returned)]
        rewards = check_rewards(returned, len(responses), self._name, none_allowed=style != LISTS)
        return Scores(
            rewards,
            graded=self._graded or not are_binary(rewards),
            logged=list(call.logged) if any(call.logged) else [],
            logged_metrics={name: tuple(values) for name, values in call.metrics.items()},
        )

    def close(self) -> None:
        """Nothing to release."""


class RewardCall:
    """The arguments for scoring one list of responses, and what the function logs meanwhile."""

    def __init__(
        self,
        name: str,
        arguments: RewardArguments,
        responses: Sequence[str],
        prompts: Sequence[Prompt],
        context: ScoringContext,
    ) -> None:
        self.name, self.arguments, self.context = name, arguments, context
        self.responses, self.prompts = responses, prompts
        self.logged: list[dict[str, Any]] = [{} for _ in responses]
        self.metrics: dict[str, list[float]] = {}

    # -- one call with lists --------------------------------------------------------------------

    def positional_lists(self) -> list[Any]:
        sources = POSITIONAL_SOURCES if self.arguments.positional else ()
        return [self._list_of(source) for source in sources]

    def keyword_lists(self) -> dict[str, Any]:
        """Every keyword with its list; TRL's **kwargs also get what the function does not name."""
        keywords = dict(self.arguments.keywords)
        optional = set(self.arguments.optional)
        if self.arguments.style == TRL and self.arguments.takes_everything:
            columns = self.prompts[0].columns if self.prompts else NO_COLUMNS
            # Every column but those in whose place TRL passes its own lists.
            replaced = ("prompt", "completion", *TRL_KEYWORDS)
            sources = {name: SOURCE_OF_PARAMETER[TRL][name] for name in TRL_KEYWORDS}
            sources |= {name: name for name in columns if name not in replaced}
            for name, source in sources.items():
                if name not in keywords:
                    keywords[name] = source
                    optional.add(name)
        values = {name: self._list_of(source) for name, source in keywords.items()}
        return self._without_unavailable(values, optional)

    def _list_of(self, source: str) -> Any:
        """The values of all responses; what TRL passes once for the batch is no list."""
        if self.arguments.style == TRL:
            if source == TRAINER_STATE:
                return self._trainer_state()
            if source == LOG_EXTRA:
                return self._log_extra
            if source == LOG_METRIC:
                return self._log_metric
        values = [self._value(i, source) for i in range(len(self.responses))]
        return UNAVAILABLE if any(value is UNAVAILABLE for value in values) else values

    # -- one call for each response --------------------------------------------------------------

    def keywords_of_each(self) -> list[dict[str, Any]]:
        keywords, optional = self.arguments.keywords, set(self.arguments.optional)
        calls = []
        for i in range(len(self.responses)):
            values = {name: self._value(i, source) for name, source in keywords.items()}
            calls.append(self._without_unavailable(values, optional))
        return calls

    def take_score(self, response_index: int, result: Any) -> Any:
        """The score in verl's result; the other entries of a dictionary are logged."""
        if not isinstance(result, Mapping):
            return result
        if "score" not in result:
            raise PoiseError(
                f"{self.name} returned {_shorten(result)}: a dictionary needs a number under "
                "'score', as in {'score': 1.0, 'acc': True}"
            )
        self.logged[response_index] |= {
            str(key): value for key, value in result.items() if key != "score"
        }
        return result["score"]

    # -- values ---------------------------------------------------------------------------------

    def _value(self, response_index: int, source: str) -> Any:
        """The value of one response for `source`, a built-in source of this style or a column."""
        prompt, response = self.prompts[response_index], self.responses[response_index]
        columns = prompt.columns
        if not self.arguments.is_builtin_source(source):
            return columns.get(source, UNAVAILABLE)
        if source in (RESPONSES, PROMPTS):
            as_messages = self.arguments.as_messages
            is_chat = bool(prompt.messages) if as_messages is None else as_messages
            if self.arguments.style == TRL and is_chat:
                return _to_messages(prompt if source == PROMPTS else response)
            return response if source == RESPONSES else prompt.problem
        if source == ANSWERS:
            return prompt.answer
        if source in _SOURCE_READERS:
            return _SOURCE_READERS[source](prompt)
        if source == MESSAGES:
            return _to_messages(prompt)
        if source == TOKEN_IDS:
            token_ids = self.context.token_ids
            return (
                UNAVAILABLE
                if token_ids is None
                else [int(token) for token in token_ids[response_index]]
            )
        if source == TRAINER_STATE:
            return self._trainer_state()
        if source == DATA_SOURCE:
            return columns.get(DATA_SOURCE) or self.context.data_source
        if source == SAMPLE and SAMPLE not in columns:
            texts = {"prompt": prompt.problem, "completion": response, "answer": prompt.answer}
            return {**columns, "id": prompt.id, **texts}
        return columns.get(source, UNAVAILABLE)

    def _trainer_state(self) -> Any:
        state = self.context.trainer_state
        return UNAVAILABLE if state is None else state

    def _without_unavailable(self, values: dict[str, Any], optional: set[str]) -> dict[str, Any]:
        for name, value in values.items():
            if value is UNAVAILABLE and name not in optional:
                self._raise_unavailable(self.arguments.keywords[name])
        return {name: value for name, value in values.items() if value is not UNAVAILABLE}

    def _raise_unavailable(self, source: str) -> None:
        if source == TOKEN_IDS and self.arguments.is_builtin_source(source):
            raise PoiseError(
                f"{self.name} needs completion_ids, and here only the texts of responses are known"
            )
        if source == TRAINER_STATE and self.arguments.is_builtin_source(source):
            raise PoiseError(
                f"{self.name} needs trainer_state, which exists only while a run trains: give the "
                "parameter a default, as in trainer_state=None"
            )
        raise PoiseError(
            f"{self.name} needs the column '{source}', which is not available here: stored "
            "rollouts keep only the text and the answer of a problem"
        )

    # -- logging --------------------------------------------------------------------------------

    def _log_extra(self, column: str, values: Sequence[Any]) -> None:
        """TRL's log_extra: a column with one value for each response."""
        if len(values) != len(self.logged):
            raise PoiseError(
                f"{self.name} logged {len(values)} values of '{column}' for {len(self.logged)} "
                "responses: log one for each"
            )
        for logged, value in zip(self.logged, values, strict=True):
            logged[str(column)] = value

    def _log_metric(self, metric: str, value: float) -> None:
        """TRL's log_metric: a number for the whole batch."""
        self.metrics.setdefault(str(metric), []).append(float(value))


def _to_messages(content: Prompt | str) -> list[dict[str, str]]:
    """A prompt or a response as TRL's messages; a plain prompt becomes one user message."""
    if isinstance(content, str):
        return [dict(Message("assistant", content))]
    return [dict(message) for message in content.messages or [Message("user", content.problem)]]


def read_solution(prompt: Prompt) -> Any:
    """The column, or the task's solution or answer; "" where there is none of them."""
    column = prompt.columns.get(SOLUTION)
    return prompt.solution or prompt.answer if column is None else column


def read_ground_truth(prompt: Prompt) -> Any:
    """The column, or the entry of verl's column `reward_model`, or the answer, which may be ""."""
    reward_model = prompt.columns.get("reward_model")
    nested = reward_model.get(GROUND_TRUTH) if isinstance(reward_model, Mapping) else None
    candidates = (prompt.columns.get(GROUND_TRUTH), nested, prompt.answer)
    return next(value for value in candidates if value is not None)


def _extra_info(prompt: Prompt) -> dict[str, Any]:
    """verl's column of that name, or all columns with the id and the text of the problem."""
    column = prompt.columns.get(EXTRA_INFO)
    if isinstance(column, Mapping):
        return dict(column)
    return {"index": prompt.id, "question": prompt.problem, **prompt.columns}


_SOURCE_READERS: Mapping[str, Callable[[Prompt], Any]] = {
    SOLUTION: read_solution,
    GROUND_TRUTH: read_ground_truth,
    EXTRA_INFO: _extra_info,
}


def check_rewards(
    returned: Any, num_responses: int, name: str, *, none_allowed: bool = False
) -> list[float]:
    """The returned rewards as floats, or an error that quotes what was returned instead.

    With `none_allowed`, None means that a reward does not apply to the response: nan.
    """
    try:
        rewards_R = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises RuntimeError
        raise PoiseError(
            f"{name} returned {_shorten(returned)}: return {_expected_list(num_responses)}"
        ) from None
    if rewards_R.shape != (num_responses,):
        raise PoiseError(
            f"{name} returned {rewards_R.size} numbers for {num_responses} responses"
            if rewards_R.ndim == 1
            else f"{name} returned {_shorten(returned)}: return {_expected_list(num_responses)}"
        )
    # numpy converts the text "1.0" to a number; a reward function that returns text has a bug.
    is_text_R = np.array([isinstance(reward, str | bytes) for reward in returned], dtype=bool)
    # `not <=` instead of `>`, so that nan is refused too.
    is_invalid_R = is_text_R | ~(np.abs(rewards_R) <= LARGEST_REWARD)
    if none_allowed:
        is_invalid_R &= np.array([reward is not None for reward in returned], dtype=bool)
    (invalid,) = np.nonzero(is_invalid_R)
    if len(invalid):
        index = int(invalid[0])
        raise PoiseError(
            f"{name} returned {_shorten(returned[index])} for response {index + 1} of "
            f"{num_responses}: a reward is a finite number, at most {LARGEST_REWARD:g} in size"
        )
    rewards: list[float] = rewards_R.tolist()
    return rewards


def _expected_list(num_responses: int) -> str:
    return f"a list of {num_responses} numbers, one for each response"


def _shorten(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
