"""reward = the sum of the rewards that a task of the `verifiers` package defines.

    verify.name = "verifiers", with task.name = "verifiers"        sum_k weight_k reward_k(trace)

A task of that package is data and scoring. The trace that its rewards read has the prompt's
messages and the response as the model's one turn. Tasks that need more than a text (tools, a
container, a runtime, a judge, a simulated user) are refused before a run, with an error that names
what they need: their rewards would be skipped, or be of an episode that was never played. Metrics
of a task are logged.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.types import Prompt
from counterpoise.verify.scores import Scores, are_binary

TASKSET_COLUMN, DATA_COLUMN = "verifiers_taskset", "verifiers_data"
LIFECYCLE_HOOKS = ("setup", "finalize", "stage_verifier")


def import_verifiers() -> Any:
    """The package's module `v1`, in which all of it lives."""
    try:
        import verifiers.v1
    except ImportError as fault:
        raise PoiseError(
            f"tasks of verifiers need that package ({first_line(fault)}): "
            "pip install 'counterpoise[verifiers]'"
        ) from fault
    return verifiers.v1


@cache
def load_taskset(name: str) -> Any:
    """The taskset of an installed package, or of a module that can be imported."""
    v1 = import_verifiers()
    try:
        return v1.load_taskset(v1.taskset_config_type(name)(id=name))
    except Exception as fault:  # the package's own code may raise anything
        raise PoiseError(f"task.path={name}: {first_line(fault)}") from fault


def check_text_only(task: Any, name: str) -> None:
    """Raise an error if a task needs more than a prompt and a response."""
    v1 = import_verifiers()
    needs = {
        "a container": task.NEEDS_CONTAINER or task.data.image,
        "tools": type(task).toolsets(task.config) or load_taskset(name).toolsets(
            load_taskset(name).config
        ),
        "a judge": task.config.judges,
        "a user who opens the conversation": task.data.prompt is None,
        "a runtime": any(map(_requires_runtime, task.hooks("reward")))
        or any(getattr(type(task), hook) is not getattr(v1.Task, hook) for hook in LIFECYCLE_HOOKS),
    }  # fmt: skip
    if missing := [need for need, is_needed in needs.items() if is_needed]:
        raise PoiseError(
            f"task.path={name}: its tasks need {' and '.join(missing)}, and only a prompt and a "
            "response are played here: choose another taskset, or train it with prime-rl"
        )
    if not task.hooks("reward"):
        raise PoiseError(f"task.path={name}: its tasks have no reward: choose another taskset")


def _requires_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


class VerifiersVerifier:
    """Scores responses by the rewards of their tasks, all at the same time."""

    def __init__(self, timeout_seconds: float = 5.0, workers: int = 2) -> None:
        self._timeout_seconds = timeout_seconds

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        """One reward for each response.

        A response whose reward still waits at an `await` when the time limit passes scores 0; a
        reward that computes without `await` is not interrupted.
        """
        traces = asyncio.run(self._score_all(responses, prompts))
        rewards = [0.0 if trace is None else float(trace.reward) for trace in traces]
        logged: list[Mapping[str, Any]] = [
            {"lost": "timeout"} if trace is None else {**trace.metrics} for trace in traces
        ]
        return Scores(
            rewards,
            timeouts=sum(trace is None for trace in traces),
            graded=not are_binary(rewards),
            logged=logged if any(logged) else [],
        )

    async def _score_all(self, responses: Sequence[str], prompts: Sequence[Prompt]) -> list[Any]:
        pairs = zip(responses, prompts, strict=True)
        return list(await asyncio.gather(*(self._score(text, prompt) for text, prompt in pairs)))

    async def _score(self, response: str, prompt: Prompt) -> Any:
        """The scored trace of one response; None if it took too long."""
        task, trace = make_trace(response, prompt)
        try:
            await asyncio.wait_for(task.score(trace), self._timeout_seconds)
        except TimeoutError:
            return None
        except Exception as fault:  # of a reward, wrapped by the package
            name = prompt.columns[TASKSET_COLUMN]
            raise PoiseError(
                f"verifiers taskset {name}: a reward failed for {prompt.id}: {first_line(fault)}"
            ) from fault
        return trace

    def close(self) -> None:
        """Nothing to release."""


def make_trace(response: str, prompt: Prompt) -> tuple[Any, Any]:
    """(the task of a prompt, a trace of its messages and the response)."""
    v1 = import_verifiers()
    if TASKSET_COLUMN not in prompt.columns:
        raise PoiseError(
            f"verify.name=verifiers scores tasks of that package, and problem '{prompt.id}' is "
            "none: set task.name=verifiers, or another verify.name"
        )
    taskset = load_taskset(prompt.columns[TASKSET_COLUMN])
    task_type = type(taskset).task_type()
    data = task_type.data_type().model_validate(prompt.columns[DATA_COLUMN])
    task = task_type(data, taskset.config.task)
    message_types = {
        "system": v1.SystemMessage, "user": v1.UserMessage, "assistant": v1.AssistantMessage,
    }  # fmt: skip
    messages = [message_types[message.role](content=message.content) for message in prompt.messages]
    nodes = [
        v1.MessageNode(parent=number - 1 if number else None, message=message)
        for number, message in enumerate(messages)
    ]
    reply = v1.AssistantMessage(content=response)
    nodes.append(v1.MessageNode(parent=len(nodes) - 1, message=reply, sampled=True))
    trace = v1.Trace(
        task=v1.TraceTask(type=task_type.__name__, data=data, key=task.key, hash=task.hash),
        agent=v1.AgentInfo(config=v1.AgentConfig()),
        nodes=nodes,
        state=_state_type(task_type)(),
        is_completed=True,
        ok=True,
    )
    return task, trace


def _state_type(task_type: type) -> Any:
    """The class of a task's state, which rewards may write to."""
    from verifiers.v1.state import state_cls

    return state_cls(task_type)
