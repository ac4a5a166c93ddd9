"""A user's class as the environment: its turns and rewards, its faults, and a run with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample.test_episodes import LOW, RIGHT, SIZES, WRONG, Scripted

from counterpoise.config import ModelConfig, SampleConfig, TaskConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.model.load import Policy, load_policy
from counterpoise.run.try_plugins import check_plugins, try_plugins
from counterpoise.sample.episodes import make_episode_player, score_episodes
from counterpoise.store.resume import load_config_to_resume
from counterpoise.types import Prompt, Response
from counterpoise.verify.exact import ExactVerifier

PROMPT = Prompt("p/1", "How many hats are there?", "19")
GUESS = """
class Guess:
    def reset(self, prompt):
        self.answer, self.tries = prompt.answer, 0
        return {first}

    def step(self, response):
        self.tries += 1
        right = "{{" + self.answer + "}}" in response
        return {returned}
"""
RETURNED = "(None if right else f'No, try {self.tries + 1}.', 1.0 if right else -0.25, right)"


def written(tmp_path: Path, returned: str = RETURNED, first: str = "None") -> str:
    path = tmp_path / "mine.py"
    path.write_text(GUESS.format(first=first, returned=returned))
    return f"{path}:Guess"


def test_a_class_that_its_module_imports_when_it_is_used(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "lazy.py").write_text(
        "def __getattr__(name):\n"
        "    if name != 'Guess': raise AttributeError(name)\n"
        f"    names = {{}}\n    exec(open({str(tmp_path / 'mine.py')!r}).read(), names)\n"
        "    return names[name]\n"
    )
    environment = TaskConfig(environment=f"{tmp_path}/lazy.py:Guess", turns=2)
    assert make_episode_player(environment, ExactVerifier()) is not None


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(device="cpu"))


def play(
    policy: Policy, name: str, scripted: Scripted, turns: int = 3, sizes: SampleConfig = SIZES
) -> list[Response]:
    player = make_episode_player(TaskConfig(environment=name, turns=turns), ExactVerifier())
    assert player is not None
    encoded = [(PROMPT, policy.encode(PROMPT))]
    return player.play(policy, encoded, [[5, 6]], sizes, scripted)[0]


ACTION = """
    def action(self, response):
        start = response.find("boxed")
        return {marked}
"""


def test_a_method_marks_the_actions_of_turns(policy: Policy, tmp_path: Path) -> None:
    name = written(tmp_path)
    source = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(source + ACTION.format(marked="(start, start + 5)"))
    check_plugins(load_config("demo", [f"task.environment={name}", "credit.weights=serl"]))
    response, _ = play(policy, name, Scripted([WRONG, RIGHT], [LOW], [RIGHT]))
    assert len(response.turns) == 3
    for turn in response.turns:
        marked = policy.decode(response.tokens[slice(*turn.action)])
        assert "boxed" in marked
        assert len(marked) < 9
    (tmp_path / "other.py").write_text(source + ACTION.format(marked="(3, 99999)"))
    with pytest.raises(PoiseError, match=r"action returned \(3, 99999\) for p/1: return"):
        play(policy, f"{tmp_path}/other.py:Guess", Scripted([WRONG, RIGHT], [LOW], [RIGHT]))


def test_turns_and_rewards(policy: Policy, tmp_path: Path) -> None:
    first, second = play(policy, written(tmp_path), Scripted([WRONG, RIGHT], [LOW], [RIGHT]))
    assert first.reward == 0.5  # -0.25 - 0.25 + 1
    assert second.reward == 1.0
    assert [turn.feedback for turn in first.turns] == ["No, try 2.", "No, try 3.", ""]
    assert first.text.split("\n") == [WRONG, "No, try 2.", LOW, "No, try 3.", RIGHT]
    assert [turn.observation.tolist() for turn in first.turns[1:]] == [
        policy.encode_reply(reply).tolist() for reply in ("No, try 2.", "No, try 3.")
    ]
    assert [turn.feedback for turn in second.turns] == [""]
    scores = score_episodes(ExactVerifier(), [first, second], [PROMPT, PROMPT])
    assert scores.rewards == [0.5, 1.0]


def test_without_rewards_the_verifier_scores(policy: Policy, tmp_path: Path) -> None:
    name = written(tmp_path, "(None, None, True)")
    responses = play(policy, name, Scripted([WRONG, RIGHT]))
    assert [response.reward for response in responses] == [None, None]
    assert [response.turns[0].feedback for response in responses] == ["The episode is over.", ""]
    scores = score_episodes(ExactVerifier(), responses, [PROMPT, PROMPT])
    assert scores.rewards == [0.0, 1.0]


def test_a_first_message_takes_the_problems_place(policy: Policy, tmp_path: Path) -> None:
    scripted = Scripted([RIGHT, RIGHT])
    name = written(tmp_path, first="'Guess. ' + prompt.problem")
    responses = play(policy, name, scripted)
    tokens = policy.encode(f"Guess. {PROMPT.problem}").tolist()
    assert scripted.asked == [[tokens]]
    assert [response.prompt_tokens.tolist() for response in responses] == [tokens, tokens]
    assert {response.first_message for response in responses} == {f"Guess. {PROMPT.problem}"}
    with pytest.raises(
        PoiseError, match=r"for p/1 has \d+ tokens: raise sample\.max_prompt_tokens=4"
    ):
        play(policy, name, scripted, sizes=SampleConfig(max_new_tokens=64, max_prompt_tokens=4))


def test_a_random_first_message_is_refused(policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "class Guess:\n    def reset(self, prompt, seed):\n        return f'Guess {seed}.'\n"
        "    def step(self, response):\n        return None, 1, True\n"
    )
    with pytest.raises(PoiseError, match="reset returned different first messages for p/1"):
        play(policy, f"{path}:Guess", Scripted([RIGHT, RIGHT]))


@pytest.mark.parametrize(
    ("returned", "first", "message"),
    [
        ("None", "None", "step returned NoneType for p/1: return (reply or None, reward or None"),
        ("(7, 1, True)", "None", "step returned the reply 7 for p/1"),
        ("(None, 'x', True)", "None", "step returned the reward 'x' for p/1"),
        ("(None, float('nan'), True)", "None", "step returned the reward nan for p/1"),
        ("(None, 1 / 0, True)", "None", "mine.py:10: ZeroDivisionError: division by zero"),
        ("(None, 1, True)", "3", "reset returned 3 for p/1: return a text or None"),
        ("(None, 1, True)", "prompt.no", "mine.py:5: AttributeError: 'Prompt' object has no"),
    ],
)
def test_a_fault_is_one_line(
    policy: Policy, tmp_path: Path, returned: str, first: str, message: str
) -> None:
    with pytest.raises(PoiseError) as fault:
        play(policy, written(tmp_path, returned, first), Scripted([RIGHT, RIGHT]))
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def Guess():\n    pass\n",
            "Guess is not an environment: write a class with the methods reset",
        ),
        ("class Guess:\n    pass\n", "Guess is not an environment"),
        (
            "class Guess:\n    def reset(self): ...\n    def step(self, response): ...\n",
            "it cannot be called as Guess.reset(self, prompt)",
        ),
        (
            "class Guess:\n    def __init__(self, x): ...\n"
            "    def reset(self, prompt): ...\n    def step(self, response): ...\n",
            "it cannot be called as Guess()",
        ),
    ],
)
def test_a_class_that_does_not_fit_is_refused_before_the_run(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(PoiseError) as fault:
        check_plugins(load_config("demo", [f"task.environment={tmp_path}/mine.py:Guess"]))
    assert message in str(fault.value)


def test_a_dry_run_plays_a_turn(tmp_path: Path) -> None:
    (line,) = try_plugins(load_config("demo", [f"task.environment={written(tmp_path)}"]))
    assert line == (
        "#   own environment mine.py:Guess: after the answer: reward 1, the episode ends; after an "
        "empty response: reward -0.25, the reply is 'No, try 2.'"
    )


def test_actions_are_not_marked(tmp_path: Path) -> None:
    sets = [f"task.environment={written(tmp_path)}", "credit.weights=serl"]
    with pytest.raises(PoiseError, match=r"marked actions: give .*Guess a method action"):
        check_plugins(load_config("demo", sets))


def test_a_run_is_stored_and_resumed_with_the_same_file_only(tmp_path: Path) -> None:
    name, out = written(tmp_path), tmp_path / "run"
    sets = [
        "loop.iterations=1", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
        "task.size=16", "task.heldout=4", "sample.prompts=3", "sample.group_size=4",
        "sample.max_new_tokens=40", "balance.tau=0", "batch.steps=2", "evaluate.prompts=2",
        "evaluate.samples=2", f"task.environment={name}",
    ]  # fmt: skip
    train(load_config("demo", sets), out)
    records = [json.loads(line) for line in (out / "rollouts/step_00001.jsonl").open()]
    for record in records:
        is_right = not record["turns"][-1]["feedback"]
        assert record["reward"] == -0.25 * (len(record["turns"]) - is_right) + is_right
    metrics = json.loads((out / "metrics.jsonl").read_text())
    assert metrics["reward"] == pytest.approx(sum(r["reward"] for r in records) / len(records))
    config = load_config_to_resume(out, None, ["loop.iterations=2"])
    path = tmp_path / "mine.py"
    before = path.read_text()
    path.write_text(before + "\n")
    with pytest.raises(PoiseError, match=r"with task\.environment='.*mine\.py:Guess@\w+', not"):
        load_config_to_resume(out, load_config("demo", sets), [])
    path.write_text(before)
    train(config, out, resume=True)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
