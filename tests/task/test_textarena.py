"""Text games of `textarena`: games by seed, turns and rewards, a run, what is refused."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sample.test_episodes import SIZES, Scripted
from small_run import REWARD, small_config, write_model
from test_resume import outcome, same

from counterpoise import loop
from counterpoise.config import ModelConfig, TaskConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.model.load import Policy, load_policy
from counterpoise.sample.episodes import make_episode_player, score_episodes
from counterpoise.store.folder import RunFolder
from counterpoise.task.textarena_games import GAMES, GameSession, load, parse_game_settings
from counterpoise.types import Prompt
from counterpoise.verify.exact import ExactVerifier

GUESS = "GuessTheNumber-v0"
SETTINGS = ["max_number=8", "max_turns=4"]


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == "textarena":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(PoiseError, match=r"pip install 'counterpoise\[textarena\]'"):
        load(GUESS)


@pytest.mark.parametrize("name", ["name", "environment"])
def test_task_and_environment_go_together(name: str) -> None:
    with pytest.raises(PoiseError, match=r"set task\.name and task\.environment to it"):
        load_config("demo", [f"task.{name}=textarena"])


@pytest.mark.parametrize(
    ("response", "span"),
    [("I go [up].", (5, 9)), (" 7\n", (1, 2)), ("", (0, 0)), ("a ] [", (0, 5))],
)
def test_the_action_is_the_command(response: str, span: tuple[int, int]) -> None:
    assert GameSession().action(response, Prompt("1", "", "")) == span


class TestWithThePackage:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("textarena", reason="the textarena extra is not installed")

    @pytest.mark.parametrize("game", GAMES)
    def test_games_are_functions_of_their_seeds(
        self, game: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two sessions of a game, one of them beside other games, and nothing from a network."""

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a connection was opened")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        random.seed(7)
        np.random.seed(7)
        state = random.getstate()
        task = load(game, size=4, heldout=2, seed=5)
        other_task = load(game, size=4, heldout=2, seed=6)
        assert [p.problem for p in task.train] == [
            p.problem for p in load(game, size=4, heldout=2, seed=5).train
        ]
        assert [p.columns["seed"] for p in task.train] != [
            p.columns["seed"] for p in other_task.train
        ]
        prompt, other_prompt = task.train[0], other_task.train[0]
        commands = ["up", "[1]", "[A1]", "left", "[hit]", "[1 2 3 4]", "[0 0]", "[2]", "[stand]"]
        commands = [*commands, "[red]", "[down]", "hello ]", "", "[right]", "[continue]", "[3]"]
        alone, beside, third = GameSession(), GameSession(), GameSession()
        alone.reset(prompt, 1)
        outcomes = []
        for command in commands:
            outcomes.append(alone.step(command, prompt))
            assert outcomes[-1].reply
            if outcomes[-1].is_done:
                break
        beside.reset(prompt, 2)
        third.reset(other_prompt, 3)
        for command, expected in zip(commands, outcomes, strict=False):
            random.random()
            if not third.env.state.done:
                third.step("[up]", other_prompt)
            assert beside.step(command, prompt) == expected
        random.setstate(state)
        assert random.random() == random.Random(7).random()

    def test_the_generators_of_the_process_are_left_alone(self) -> None:
        random.seed(7)
        np.random.seed(7)
        load("2048-v0", size=2, heldout=1)
        assert random.random() == random.Random(7).random()
        assert np.random.random() == np.random.RandomState(7).random()

    def test_visible_games_are_taken_once_and_hidden_ones_all(self) -> None:
        boards = load("FrozenLake-v0", size=60, heldout=2, settings=["size=3", "num_holes=1"])
        texts = [prompt.problem for prompt in (*boards.train, *boards.heldout)]
        assert 1 <= len(set(texts)) == len(texts) < 8  # 7 cells may hold the hole
        numbers = load(GUESS, size=30, heldout=10)
        assert (len(numbers.train), len(numbers.heldout)) == (30, 10)
        assert len({prompt.columns["seed"] for prompt in numbers.train}) == 30

    def test_true_and_false_may_be_written_as_in_python(self) -> None:
        for value in (True, False):
            for text in (str(value), str(value).lower()):
                settings = [f"randomize_start_goal={text}"]
                parsed = parse_game_settings("FrozenLake-v0", settings)
                assert parsed == {"randomize_start_goal": value}

    @pytest.mark.parametrize(
        ("game", "settings", "message"),
        [
            ("", [], "needs a game: set task.dataset to 2048-v0, Bandit-v0"),
            ("GuessNumber", [], "did you mean 'GuessTheNumber-v0'?"),
            ("Hangman-v0", [], "is not a game of textarena for training"),
            (GUESS, ["max=3"], "unknown setting of GuessTheNumber-v0 'max'"),
            (GUESS, ["max_number"], "'max_number' is not name=value"),
            (GUESS, ["reward=best"], r"unknown reward of a game 'best' \(choices: game, win\)"),
            (GUESS, ["max_number=many"], "GuessTheNumber-v0 failed: TypeError"),
        ],
    )
    def test_what_is_refused(self, game: str, settings: list[str], message: str) -> None:
        with pytest.raises(PoiseError, match=message.replace("'?", r"'\?")):
            load(game, size=2, heldout=0, settings=settings)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(device="cpu"))


def number_of(prompt: Prompt) -> int:
    session = GameSession()
    session.reset(prompt, 0)
    return int(session.env.state.game_state["game_number"])


class TestEpisodes:
    @pytest.fixture(autouse=True)
    def package(self) -> None:
        pytest.importorskip("textarena", reason="the textarena extra is not installed")

    def play(
        self, policy: Policy, prompt: Prompt, turns: int, *scripts: Sequence[str]
    ) -> list[object]:
        config = TaskConfig(environment="textarena", name="textarena", turns=turns)
        player = make_episode_player(config, ExactVerifier())
        assert player is not None
        encoded = [(prompt, policy.encode(prompt))]
        return player.play(policy, encoded, [[5, 6]], SIZES, Scripted(*scripts))[0]

    def test_turns_feedback_and_rewards(self, policy: Policy) -> None:
        """One episode wins in its second turn; the other loses in it, close to the number."""
        prompts = load(GUESS, size=20, heldout=0, settings=["max_number=8", "max_turns=1"]).train
        prompt = next(p for p in prompts if number_of(p) == 5)
        won, lost = self.play(policy, prompt, 4, ["[3]", " 7"], ["[5]", "I say [4]."])
        assert (won.reward, lost.reward) == (1.0, pytest.approx(1 - 1 / 7))
        assert [turn.feedback for turn in won.turns] == ["The target number is higher.", ""]
        assert lost.turns[0].feedback == "The target number is lower."
        assert lost.turns[1].feedback.startswith("The turn limit has been reached. Guess: 4")
        assert policy.decode(lost.tokens[slice(*lost.turns[0].action)]).strip() == "7"
        assert policy.decode(lost.tokens[slice(*lost.turns[1].action)]).strip(". ") == "[4]"
        scores = score_episodes(ExactVerifier(), [won, lost], [prompt, prompt])
        assert scores.rewards == [won.reward, lost.reward]
        assert scores.graded

    def test_only_wins_are_rewarded_and_an_unfinished_game_is_not(self, policy: Policy) -> None:
        settings = ["max_number=8", "max_turns=9", "reward=win"]
        prompt = next(
            p for p in load(GUESS, size=20, heldout=0, settings=settings).train if number_of(p) == 5
        )
        won, unfinished = self.play(policy, prompt, 2, ["[1]", "[2]"], ["[5]", "[3]"])
        assert (won.reward, unfinished.reward) == (1.0, 0.0)
        assert unfinished.turns[1].feedback == "The target number is higher."


SETS = (
    "task.name=textarena", "task.environment=textarena", f"task.dataset={GUESS}",
    'task.settings=["max_number=3"]', "task.turns=2", "verify.name=exact", "balance.tau=0",
    "credit.weights=serl", 'credit.settings=["feedback=future"]', "loop.checkpoint_every=1",
    "loop.iterations=3", "sample.max_new_tokens=4", "monitor.every=0", "sample.group_size=6",
    "store.report=false",
)  # fmt: skip


def test_a_run_trains_and_resumes_bit_for_bit(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model that mostly writes digits: some of its guesses are right by chance."""
    pytest.importorskip("textarena", reason="the textarena extra is not installed")
    write_model(tmp_path / "model", positions=1024)
    (tmp_path / "mine.py").write_text(REWARD)
    (weights,) = (tmp_path / "model").glob("*.safetensors")
    tensors = load_file(weights)
    # All embeddings share a direction, which is larger for the tokens that are to be likely.
    common_direction = tensors["model.embed_tokens.weight"][:, 0]
    common_direction[:] = 1
    common_direction[policy.tokenizer.convert_tokens_to_ids(["1", "2", "3", "<|end|>"])] = 5
    save_file(tensors, weights, metadata={"format": "pt"})
    config = small_config(tmp_path, *SETS)
    whole = tmp_path / "whole"
    train(config, whole)
    metrics = RunFolder.open(whole).read("metrics")
    assert max(record["mixed_groups"] for record in metrics) > 0
    assert sum(record["steps"] for record in metrics) > 0
    assert all(1 < record["turns"] <= 2 for record in metrics)
    # The weights of actions differ from 1 where the game said something about them.
    assert any(record["told_tokens"] > 0 for record in metrics)
    evaluations = RunFolder.open(whole).read("evaluations")
    assert [line["iteration"] for line in evaluations] == [0, 2, 3]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluation_due", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config, out)
    assert len(RunFolder.open(out).read("metrics")) == 1
    train(config, out, resume=True)
    same(outcome(out), outcome(whole))
