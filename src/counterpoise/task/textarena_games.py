"""The `textarena` task and environment: text games of one player, of the package `textarena`.

    task.name = "textarena"   task.environment = "textarena"   task.dataset = "GuessTheNumber-v0"

    problem     You are playing Guess The Number ... between 1 and 8 ... Enter your guess.
    turn 1      [5]                                        the action: a command in square brackets
    feedback    The target number is higher.               the game's own messages
    turn 2      7                                          a response without brackets is a command

A problem is one game, set up from a seed of its own: all rollouts of a group play the same one, and
every one of them meets the same chance events. The reward is the game's when it ends, which may
give partial credit to a lost game, and 0 for a game that is not over after `task.turns` turns. A
game counts as won when its reward is 1 or more; `reward=win` of `task.settings` makes the reward 1
then and 0 otherwise. The verifier is not asked.

Other games of the package need a network or another player, are always the same, are slow to set
up (a second each), or pass their arguments wrongly. GAMES play offline and are functions of their
seeds.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError, first_line, unknown_name
from counterpoise.seeds import seed_for
from counterpoise.task.environment import SessionEnvironment, StepOutcome
from counterpoise.task.split_heldout import normalize_problem, split_prompts
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Prompt

# Some have further versions, such as FrozenLake-v0-random.
GAMES = (
    "2048-v0", "Bandit-v0", "Blackjack-v0", "FifteenPuzzle-v0", "FrozenLake-v0",
    "GuessTheNumber-v0", "LightsOut-v0", "Mastermind-v0", "Minesweeper-v0", "Secretary-v0",
    "Sudoku-v0",
)  # fmt: skip
# The version of a game that gives its new messages as a list; others repeat the earlier ones.
RAW_SUFFIX = "-raw"
REWARD_SETTING, REWARDS = "reward", ("game", "win")
WON = 1.0  # the reward of a won game
PYTHON_SPELLINGS = {"True": True, "False": False, "None": None}  # JSON has them in lower case
NO_MESSAGE = "It is your turn."


def load(
    dataset: str,
    *,
    size: int = 4096,
    heldout: int = 256,
    seed: int = 0,
    settings: Sequence[str] = (),
) -> TaskPrompts:
    """`size` games to train on and `heldout` others; fewer where boards repeat.

    Games with the same first message count as repeats: each is taken once, and training games that
    repeat a held-out one are dropped. If all games begin with the same message, they differ only in
    what is hidden, and all of them are kept.
    """
    columns = {"game": dataset, "settings": parse_game_settings(dataset, settings)}
    heldout_prompts = _set_up_games(columns, "heldout", heldout, seed)
    prompts = _set_up_games(columns, "train", size, seed)
    if len({prompt.problem for prompt in (*prompts, *heldout_prompts)}) == 1:
        return TaskPrompts(dataset, prompts, heldout_prompts)
    split = split_prompts(_drop_repeats(prompts), _drop_repeats(heldout_prompts), dataset)
    return TaskPrompts(dataset, split.train, split.heldout, repeats=split.repeats)


def _set_up_games(
    columns: Mapping[str, Any], split: str, count: int, task_seed: int
) -> list[Prompt]:
    """The games of one split: their first messages, and what sets them up again."""
    prompts = []
    for index in range(count):
        # numpy takes a 32-bit seed.
        game_seed = seed_for(task_seed, f"textarena/{split}", index) >> 31
        game_columns = {**columns, "seed": game_seed}
        first_message = GameSession().set_up(game_columns)
        prompt_id = f"{columns['game']}/{split}/{index}"
        prompts.append(Prompt(prompt_id, first_message, "", columns=game_columns))
    return prompts


def _drop_repeats(prompts: Sequence[Prompt]) -> list[Prompt]:
    by_text: dict[str, Prompt] = {}
    for prompt in prompts:
        by_text.setdefault(normalize_problem(prompt.problem), prompt)
    return list(by_text.values())


class TextArenaEnvironment(SessionEnvironment):
    """Plays the games of the `textarena` task."""

    label, marks_actions = "textarena", True

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def open_session(self) -> GameSession:
        return GameSession()


class GameSession:
    """One game that is being played."""

    def reset(self, prompt: Prompt, seed: int) -> None:
        """Set the game up as it was when its problem was made.

        All episodes of a problem play the same game, so the episode's own seed is not used.
        """
        first_message = self.set_up(prompt.columns)
        if first_message != prompt.problem:
            raise PoiseError(
                f"{prompt.id} began with another message before: {prompt.columns['game']} is not a "
                "function of its seed; choose another game with task.dataset"
            )

    def set_up(self, columns: Mapping[str, Any]) -> str:
        """Begin the game that `columns` describe; returns its first message."""
        game, settings = columns["game"], dict(columns["settings"])
        self.label = f"textarena game {game}"
        self.rewards_wins_only = settings.pop(REWARD_SETTING, REWARDS[0]) == "win"
        outer_state = _random_state()
        random.seed(columns["seed"])
        np.random.seed(columns["seed"])
        self.random_state = _random_state()
        _restore_random_state(outer_state)
        # Generators of some games print their attempts.
        with self._own_random_state(), contextlib.redirect_stdout(io.StringIO()):
            self.env = _make_game(game, settings)
            self.env.reset(num_players=1, seed=columns["seed"])
            return self._read_messages()

    def step(self, response: str, prompt: Prompt) -> StepOutcome:
        with self._own_random_state():
            is_done, _ = self.env.step(response.strip())
            message = self._read_messages()
        if not is_done:
            return StepOutcome(message or NO_MESSAGE, 0.0, is_done=False)
        rewards, info = self.env.close()
        reward = float(rewards[0])
        is_won = reward >= WON
        if self.rewards_wins_only:
            reward = float(is_won)
        # Why the game ended is not among its messages, but says most about the last action.
        ending = "\n".join(filter(None, (info[0].get("reason"), message)))
        return StepOutcome(ending, reward, is_done=True, is_success=is_won)

    def action(self, response: str, prompt: Prompt) -> tuple[int, int]:
        """The commands in brackets, from the first to the last; without brackets, the response.

        Example:
            >>> GameSession().action("I go [up].", Prompt("1", "", ""))
            (5, 9)
        """
        start, end = response.find("["), response.rfind("]") + 1
        if 0 <= start < end:
            return start, end
        text = response.strip()
        start = response.find(text)
        return (start, start + len(text)) if text else (0, 0)

    def _read_messages(self) -> str:
        """What the game has said since the last call; the policy's own commands are left out."""
        from textarena import ObservationType

        _, messages = self.env.get_observation()
        return "\n".join(
            message.strip()
            for _, message, kind in messages
            if kind is not ObservationType.PLAYER_ACTION
        ).strip()

    @contextlib.contextmanager
    def _own_random_state(self) -> Iterator[None]:
        """Let the game draw from its own random numbers, and explain what it raises.

        The package's games share the generators of the process. Episodes are played side by side,
        so each session puts its own state there for as long as its game runs.
        """
        outer_state = _random_state()
        _restore_random_state(self.random_state)
        try:
            yield
        except PoiseError:
            raise
        except Exception as fault:  # the package's own code may raise anything
            raise PoiseError(
                f"{self.label} failed: {type(fault).__name__}: {first_line(fault)}; choose other "
                "task.settings or another game with task.dataset"
            ) from fault
        finally:
            self.random_state = _random_state()
            _restore_random_state(outer_state)


def _random_state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _restore_random_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


def _make_game(game: str, settings: Mapping[str, Any]) -> Any:
    import textarena
    from textarena.wrappers import ActionFormattingWrapper

    # The wrapper puts brackets around a response that has none.
    return ActionFormattingWrapper(textarena.make(game + RAW_SUFFIX, **settings))


def parse_game_settings(game: str, settings: Sequence[str]) -> dict[str, Any]:
    """["max_number=8"] -> {"max_number": 8}; an error names the game's settings or the games.

    Values are JSON, True, False and None as in Python, or text.
    """
    parameters = (REWARD_SETTING, *_game_parameters(game))
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = (piece.strip() for piece in setting.partition("="))
        if not equals:
            raise PoiseError(f"task.settings: '{setting}' is not name=value")
        if name not in parameters:
            kind = f"setting of {game}"
            raise PoiseError(f"task.settings: {unknown_name(kind, name, parameters)}")
        if name == REWARD_SETTING and value not in REWARDS:
            raise PoiseError(f"task.settings: {unknown_name('reward of a game', value, REWARDS)}")
        try:
            parsed[name] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name] = PYTHON_SPELLINGS.get(value, value)
    return parsed


def _game_parameters(game: str) -> list[str]:
    """The names of the settings of a game, which is one of GAMES."""
    try:
        from textarena.envs.registration import ENV_REGISTRY
    except ImportError:
        raise PoiseError(
            "the textarena task needs the package textarena: pip install 'counterpoise[textarena]'"
        ) from None
    is_supported = game.startswith(GAMES) and game + RAW_SUFFIX in ENV_REGISTRY
    if not game:
        raise PoiseError(f"the textarena task needs a game: set task.dataset to {_list_games()}")
    if not is_supported:
        nearest = get_close_matches(game, GAMES, n=1, cutoff=0.5)
        hint = f"did you mean '{nearest[0]}'? " if nearest else ""
        raise PoiseError(
            f"task.dataset: '{game}' is not a game of textarena for training: {hint}(choices: "
            f"{_list_games()})"
        )
    module, _, class_name = ENV_REGISTRY[game].entry_point.partition(":")
    game_class = getattr(import_module(module), class_name)
    return list(inspect.signature(game_class).parameters)


def _list_games() -> str:
    return f"{', '.join(GAMES)}, or another version of one of these"
