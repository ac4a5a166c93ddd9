"""How a user's reward function is called, recognised by the names of its parameters.

    score(responses, answers)                           lists: one call for all responses
    score(prompts, completions, completion_ids, **kw)   TRL's: the same, everything by keyword
    score(data_source, solution_str, ground_truth)      verl's: one call for each response
    score(completion, answer)                           a function of one sample: the same

The first line that fits decides:

    a parameter `solution_str`                          verl's
    `responses`                                         lists
    `completion` or `sample`                            one sample
    `completions` or `completion_ids`                   TRL's
    `response: str`; or a first parameter `x: str`, if  one sample
    responses and answers go by position (see below)
    **kwargs, no `response`, no positional parameters   TRL's
    anything else                                       lists

A function with exactly two required parameters gets responses and answers by position, whatever
they are called, unless one of them is `prompts` or `prompt`, or `answers` comes first. Parameters
of a list function that have defaults keep them, unless SOURCE_OF_PARAMETER has their name.

Any other name is a column of the problems. In the other three forms a parameter with a default gets
the column of its name if the problems have one, and **kwargs of TRL's form gets all columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, formatannotation

from counterpoise import plugins
from counterpoise.errors import PoiseError
from counterpoise.types import ALL_COLUMNS

RESPONSES, ANSWERS, PROMPTS = "responses", "answers", "prompts"
_LIST_SOURCES = {
    "responses": RESPONSES, "response": RESPONSES, "completions": RESPONSES,
    "answers": ANSWERS, "answer": ANSWERS, "prompts": PROMPTS, "prompt": PROMPTS,
}  # fmt: skip
POSITIONAL_SOURCES = (RESPONSES, ANSWERS)
TOKEN_IDS, SAMPLE, MESSAGES = "completion_ids", "sample", "messages"
SOLUTION, GROUND_TRUTH = "solution", "ground_truth"
DATA_SOURCE, EXTRA_INFO = "data_source", "extra_info"
TRAINER_STATE, LOG_EXTRA, LOG_METRIC = "trainer_state", "log_extra", "log_metric"
# A function with one of these parameters expects everything by keyword.
NEVER_POSITIONAL = ("prompts", "prompt", "completion", SAMPLE)

LISTS, TRL, VERL, ONE_SAMPLE = "lists", "trl", "verl", "one sample"
STYLE_PHRASES = {
    LISTS: "lists of responses, called once for each batch",
    TRL: "TRL's signature, called once for each batch",
    VERL: "verl's compute_score, called once for each response",
    ONE_SAMPLE: "a function of one sample, called once for each response",
}
_REFERENCES = {
    "answer": ANSWERS, "answers": ANSWERS, SOLUTION: SOLUTION, GROUND_TRUTH: GROUND_TRUTH,
}  # fmt: skip
# style -> parameter -> its source: what it is filled with. Any other parameter is a column.
SOURCE_OF_PARAMETER: Mapping[str, Mapping[str, str]] = {
    LISTS: _LIST_SOURCES,
    TRL: {
        **_LIST_SOURCES, **_REFERENCES, TOKEN_IDS: TOKEN_IDS,
        TRAINER_STATE: TRAINER_STATE, LOG_EXTRA: LOG_EXTRA, LOG_METRIC: LOG_METRIC,
    },
    VERL: {
        "solution_str": RESPONSES, GROUND_TRUTH: GROUND_TRUTH, DATA_SOURCE: DATA_SOURCE,
        EXTRA_INFO: EXTRA_INFO,
    },
    ONE_SAMPLE: {
        "completion": RESPONSES, "response": RESPONSES, "prompt": PROMPTS, "problem": PROMPTS,
        **_REFERENCES, TOKEN_IDS: TOKEN_IDS, SAMPLE: SAMPLE, MESSAGES: MESSAGES,
        TRAINER_STATE: TRAINER_STATE,
    },
}  # fmt: skip
# Sources that are read from the column of that name if the problems have one.
COLUMN_FIRST = (SOLUTION, GROUND_TRUTH, DATA_SOURCE, EXTRA_INFO, SAMPLE)
EXAMPLE = "def {name}(completion, answer): return float(answer in completion)"


@dataclass(frozen=True, slots=True)
class RewardArguments:
    """How a reward function is called.

    Example:
        def score(completions, tests): ...
        RewardArguments((), {"completions": "responses", "tests": "tests"}, style="trl")
    """

    # The function's names for responses and answers; (): all arguments are passed by keyword.
    positional: tuple[str, ...] = POSITIONAL_SOURCES
    # parameter -> its source, or a column of the problems
    keywords: Mapping[str, str] = field(default_factory=dict)
    style: str = LISTS
    optional: tuple[str, ...] = ()  # keywords that are left out where they are not available
    takes_everything: bool = False  # has **kwargs
    # Whether `completions` is annotated as chat messages; None: messages if the prompts are.
    as_messages: bool | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the function needs; also ALL_COLUMNS if it may use others."""
        needed = [
            source
            for name, source in self.keywords.items()
            if not self.is_builtin_source(source) and name not in self.optional
        ]
        may_use_others = self.style != LISTS and (
            self.takes_everything
            or any(source in COLUMN_FIRST for source in self.keywords.values())
            or not all(self.is_builtin_source(self.keywords[name]) for name in self.optional)
        )
        return (*needed, ALL_COLUMNS) if may_use_others else tuple(needed)

    def is_builtin_source(self, name: str) -> bool:
        """Whether `name` is a source of this style, rather than a column of the problems."""
        return name in SOURCE_OF_PARAMETER[self.style].values()


def reward_arguments(name: str) -> RewardArguments:
    """How to call the function `name`, from its signature; an error if that is impossible."""
    function = plugins.load_plugin(name)
    parameters = list(function.signature.parameters.values())
    style = recognise_style(parameters)
    arguments = (
        _list_arguments(parameters) if style == LISTS else _keyword_arguments(parameters, style)
    )
    if not _takes_responses(arguments):
        raise PoiseError(
            f"{function.path}: {function.name}({', '.join(function.signature.parameters)}) has no "
            "parameter for the responses: call one of them `responses`, or `completion` for one at "
            f"a time, as in {EXAMPLE.format(name=function.name)}"
        )
    required = {
        name: source
        for name, source in arguments.keywords.items()
        if name not in arguments.optional
    }
    try:
        function.check_arguments(*arguments.positional, **required)
    except PoiseError as fault:
        raise PoiseError(f"{fault}; this works: {EXAMPLE.format(name=function.name)}") from fault
    return arguments


def describe_reward(name: str) -> str:
    """One line for the start of a run: how the function is called.

    Example:
        "reward mine.py:accuracy: TRL's signature, called once for each batch"
    """
    style = reward_arguments(name).style
    return f"reward {plugins.display_name(name)}: {STYLE_PHRASES[style]}"


def recognise_style(parameters: Sequence[Parameter]) -> str:
    """LISTS, TRL, VERL or ONE_SAMPLE."""
    names = {parameter.name for parameter in parameters}
    if "solution_str" in names:
        return VERL
    if "responses" in names:
        return LISTS
    if names & {"completion", SAMPLE}:
        return ONE_SAMPLE
    if names & {"completions", TOKEN_IDS}:
        return TRL
    positional = _positional_names(parameters)
    response_names = positional[:1] or ("response",)
    if any(p.name in response_names and _annotation(p) == "str" for p in parameters):
        return ONE_SAMPLE
    has_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if has_keywords and not positional and "response" not in names:
        return TRL
    return LISTS


def _list_arguments(parameters: Sequence[Parameter]) -> RewardArguments:
    positional = _positional_names(parameters)
    keywords = {
        parameter.name: _LIST_SOURCES.get(parameter.name, parameter.name)
        for parameter in parameters
        if parameter.name not in positional
        and (parameter.name in _LIST_SOURCES or _is_required(parameter))
    }
    return RewardArguments(positional, keywords)


def _keyword_arguments(parameters: Sequence[Parameter], style: str) -> RewardArguments:
    named_parameters = [
        parameter
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    sources = dict(SOURCE_OF_PARAMETER[style])
    if style == ONE_SAMPLE:
        # score(text: str, gold: str) names neither source: the positions decide.
        sources |= dict(zip(_positional_names(named_parameters), POSITIONAL_SOURCES, strict=False))
    completions = next(
        (parameter for parameter in named_parameters if parameter.name == "completions"), None
    )
    return RewardArguments(
        (),
        {
            parameter.name: sources.get(parameter.name, parameter.name)
            for parameter in named_parameters
        },
        style,
        optional=tuple(
            parameter.name for parameter in named_parameters if not _is_required(parameter)
        ),
        takes_everything=any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
        as_messages=_wants_messages(completions) if completions else None,
    )


def _takes_responses(arguments: RewardArguments) -> bool:
    if arguments.style == TRL and arguments.takes_everything:
        return True
    # TRL's functions may score token ids, and functions of one sample the whole sample.
    carriers = {RESPONSES, TOKEN_IDS, SAMPLE} if arguments.style != LISTS else {RESPONSES}
    return bool(arguments.positional) or bool(carriers & set(arguments.keywords.values()))


def _positional_names(parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """The names of the responses and answers parameters if both are positional; otherwise ()."""
    required = [parameter.name for parameter in parameters if _is_required(parameter)]
    if any(p.kind is p.KEYWORD_ONLY and _is_required(p) for p in parameters):
        return ()
    # *args receives those of the two that have no parameter of their own; the result lists them
    # as "responses" and "answers".
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        required += POSITIONAL_SOURCES[len(required) :]
    if len(required) != len(POSITIONAL_SOURCES):
        return ()
    if any(name in NEVER_POSITIONAL for name in required):
        return ()
    # A name that is not in _LIST_SOURCES takes the source of its position. With
    # score(answers, responses) the names contradict the positions.
    sources = [
        _LIST_SOURCES.get(name, source)
        for name, source in zip(required, POSITIONAL_SOURCES, strict=True)
    ]
    return tuple(required) if sources == list(POSITIONAL_SOURCES) else ()


def _is_required(parameter: Parameter) -> bool:
    starred = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in starred


def _annotation(parameter: Parameter) -> str:
    """The annotation as text, also where `from __future__ import annotations` made it one."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    return annotation.strip("'\"") if isinstance(annotation, str) else formatannotation(annotation)


def _wants_messages(completions: Parameter) -> bool | None:
    """True if `completions` is annotated as messages, False if as texts, None if as neither."""
    annotation = _annotation(completions).lower().replace("typing.", "")
    if re.match(r"(list|sequence)\[(list|sequence|dict)", annotation):
        return True
    return False if re.match(r"(list|sequence)\[str\]", annotation) else None
