"""A user's class as the environment of episodes: FILE.py:CLASS.

    class Guess:                             # one object for each episode
        def reset(self, prompt): ...         # -> the first message, or None for the problem
        def step(self, response): ...        # -> (reply or None, reward or None, done)
        def action(self, response): ...      # -> (start, end); optional

`prompt` is a `Prompt` (`problem`, `answer`, `columns`). The first message replaces the problem and
must be the same for all rollouts of a problem. A `reset` with a parameter `seed` gets the episode's
seed: use it for hidden state and later replies, not for the first message, and draw all randomness
from it, or a resumed run will differ. `response` is the text of a turn. The episode ends when
`done` is true or there is no reply. Its reward is the sum of the rewards of its steps; if all of
them are None, the run's verifier scores it. `action` marks the characters of a turn that are its
action, (0, 0) if there are none, for `credit.weights=serl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from inspect import isclass, signature
from pathlib import Path
from typing import Any

from counterpoise import plugins
from counterpoise.errors import PoiseError
from counterpoise.task.environment import SessionEnvironment, StepOutcome
from counterpoise.types import Prompt

STEP_REMEDY = "return (reply or None, reward or None, done)"


class PluginSession:
    """The user's object for one episode, with checks of what its methods return."""

    def __init__(self, environment: Any, path: Path, label: str) -> None:
        self._environment, self._path, self._label = environment, path, label

    def reset(self, prompt: Prompt, seed: int) -> str | None:
        """The first message; None: the problem itself."""
        reset = self._environment.reset
        with plugins.explain_plugin_errors(self._path):
            takes_seed = "seed" in signature(reset).parameters
            message = reset(prompt, seed=seed) if takes_seed else reset(prompt)
        if message is not None and not (isinstance(message, str) and message):
            raise PoiseError(
                f"{self._label}: reset returned {message!r} for {prompt.id}: return a text or None"
            )
        return message

    def step(self, response: str, prompt: Prompt) -> StepOutcome:
        """The environment's answer to a turn of the episode about `prompt`."""
        with plugins.explain_plugin_errors(self._path):
            returned = self._environment.step(response)
        where = f"{self._label}: step returned"
        if not isinstance(returned, tuple) or len(returned) != 3:
            raise PoiseError(f"{where} {type(returned).__name__} for {prompt.id}: {STEP_REMEDY}")
        reply, reward, is_done = returned
        if reply is not None and not isinstance(reply, str):
            raise PoiseError(f"{where} the reply {reply!r} for {prompt.id}: {STEP_REMEDY}")
        if reward is not None:
            try:
                reward = float(reward)
            except (TypeError, ValueError):
                raise PoiseError(
                    f"{where} the reward {reward!r} for {prompt.id}: {STEP_REMEDY}"
                ) from None
            if not math.isfinite(reward):
                raise PoiseError(f"{where} the reward {reward} for {prompt.id}: {STEP_REMEDY}")
        return StepOutcome(reply or "", reward, bool(is_done) or not reply)

    def action(self, response: str, prompt: Prompt) -> tuple[int, int]:
        """The characters [start, end) of the turn's action, as the user's method marks them."""
        with plugins.explain_plugin_errors(self._path):
            returned = self._environment.action(response)
        try:
            start, end = (int(position) for position in returned)
        except (TypeError, ValueError):
            start, end = 1, 0
        if not 0 <= start <= end <= len(response):
            raise PoiseError(
                f"{self._label}: action returned {returned!r} for {prompt.id}: return (start, end) "
                "within the response"
            )
        return start, end


class PluginEnvironment(SessionEnvironment):
    """A user's environment class; `open_session` makes an object of it for each episode."""

    def __init__(
        self, plugin: plugins.PluginFunction, label: str, marks_actions: bool, turns: int
    ) -> None:
        self._plugin, self.label, self.turns = plugin, label, turns
        self.marks_actions = marks_actions

    def open_session(self) -> PluginSession:
        return PluginSession(self._plugin.call(), self._plugin.path, self.label)


def load_environment(name: str) -> Callable[[int], PluginEnvironment]:
    """A function that makes the environment of a user's class from the maximum number of turns."""
    plugin, parsed_name = plugins.load_plugin(name), plugins.parse_plugin_name(name)
    environment = plugins.load_object(name)
    methods = {"reset": ("prompt",), "step": ("response",)}
    if not isclass(environment) or any(not hasattr(environment, method) for method in methods):
        raise PoiseError(
            f"{plugin.path}: {plugin.name} is not an environment: write a class with the methods "
            "reset(self, prompt) and step(self, response)"
        )
    plugin.check_arguments()
    marks_actions = hasattr(environment, "action")
    if marks_actions:
        methods["action"] = ("response",)
    for method, arguments in methods.items():
        method_signature = signature(getattr(environment, method))
        takes_seed = method == "reset" and "seed" in method_signature.parameters
        # `check_arguments` only looks at the name of a keyword argument, not at its value.
        keywords = {"seed": ""} if takes_seed else {}
        method_plugin = plugin._replace(name=f"{plugin.name}.{method}", signature=method_signature)
        method_plugin.check_arguments("self", *arguments, **keywords)
    return partial(PluginEnvironment, plugin, str(parsed_name), marks_actions)
