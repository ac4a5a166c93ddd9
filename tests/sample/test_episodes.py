r"""Episodes: turns in their order, who said what, when it is over; what the trainer makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import tiny

from counterpoise.config import ModelConfig, SampleConfig, TaskConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy, load_policy
from counterpoise.model.scoring import score_logprobs
from counterpoise.sample.episodes import EpisodePlayer, make_episode_player, sample_responses
from counterpoise.sample.native import sample
from counterpoise.task.environment import TriesEnvironment
from counterpoise.task.word_problems import load
from counterpoise.types import Ints, Prompt, Response, Rollout, Row
from counterpoise.verify.exact import ExactVerifier
from counterpoise.verify.math.verifier import MathVerifier
from counterpoise.verify.scores import ContextVerifier, Scores, ScoringContext, TrainerState

SIZES = SampleConfig(max_new_tokens=64)
PROMPT = Prompt("1", "How many hats are there?", "19")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(device="cpu"))


class Scripted:
    """A sampler that says what it is given, turn by turn, and remembers what it was asked."""

    def __init__(self, *turns: Sequence[str], ended: bool = True) -> None:
        self.turns, self.ended = list(turns), ended
        self.asked: list[list[list[int]]] = []
        self.seeds: list[list[int]] = []

    def __call__(
        self, policy: Policy, prompts: Sequence[Ints], seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
    ) -> list[list[Response]]:  # fmt: skip
        self.asked.append([prompt.tolist() for prompt in prompts])
        self.seeds.append([seed for seeds in seeds_PG for seed in seeds])
        texts = iter(self.turns.pop(0))
        return [[self._response(policy, next(texts)) for _ in seeds] for seeds in seeds_PG]

    def _response(self, policy: Policy, text: str) -> Response:
        ids = policy.tokenizer.encode(text, add_special_tokens=False)
        tokens = np.array([*ids, 3] if self.ended else ids, dtype=np.int32)
        logprobs = -np.arange(1, len(tokens) + 1, dtype=np.float32)
        return Response(tokens, logprobs, text, self.ended)


def play(policy: Policy, scripted: Scripted, turns: int = 3, seeds: Sequence[int] = (5, 6)):
    episodes = EpisodePlayer(TriesEnvironment(turns), ExactVerifier())
    asked = [(PROMPT, policy.encode(PROMPT.problem))]
    return episodes.play(policy, asked, [list(seeds)], SIZES, scripted)[0]


WRONG, LOW, RIGHT = r"It is \boxed{43}.", r"The answer is \boxed{7}.", r"So \boxed{19}."


def test_an_episode_is_its_turns(policy: Policy) -> None:
    said = Scripted([WRONG, RIGHT], [LOW], [RIGHT])
    first, second = play(policy, said)
    prompt = policy.encode(PROMPT.problem).tolist()
    drawn = [[*policy.tokenizer.encode(text), 3] for text in (WRONG, LOW, RIGHT)]
    told = [
        policy.encode_reply(f"{feedback} {PROMPT.problem}").tolist()
        for feedback in ("43 is too many.", "It is more than 7.")
    ]
    # an episode goes on after what was said, the one that was right does not
    assert said.asked == [
        [prompt],
        [prompt + drawn[0] + told[0]],
        [prompt + drawn[0] + told[0] + drawn[1] + told[1]],
    ]
    assert first.tokens.tolist() == drawn[0] + drawn[1] + drawn[2]
    lengths = [len(part) for part in drawn]
    assert first.logprobs.tolist() == [-float(k + 1) for n in lengths for k in range(n)]
    assert [turn.start for turn in first.turns] == [0, lengths[0], lengths[0] + lengths[1]]
    assert [turn.observation.tolist() for turn in first.turns] == [[], *told]
    assert [turn.feedback for turn in first.turns] == ["43 is too many.", "It is more than 7.", ""]
    for turn, box in zip(first.turns, (r"\boxed{43}", r"\boxed{7}", r"\boxed{19}"), strict=True):
        assert policy.decode(first.tokens[slice(*turn.action)]).strip() == box
    assert first.text.split("\n") == [
        WRONG, f"43 is too many. {PROMPT.problem}", LOW, f"It is more than 7. {PROMPT.problem}",
        RIGHT,
    ]  # fmt: skip
    assert first.finished
    assert second.text == RIGHT
    assert [turn.feedback for turn in second.turns] == [""]
    assert said.seeds[0] == [5, 6]
    assert len({*said.seeds[0], *said.seeds[1], *said.seeds[2]}) == 4


class ContextReader(ContextVerifier):
    """An exact verifier that keeps what it may read besides texts."""

    def __init__(self) -> None:
        self.contexts: list[ScoringContext] = []

    def score_in_context(
        self, responses: Sequence[str], prompts: Sequence[Prompt], context: ScoringContext
    ) -> Scores:
        self.contexts.append(context)
        return ExactVerifier().score(responses, [prompt.answer for prompt in prompts], prompts)


def test_turns_are_judged_with_their_tokens_and_the_context_of_the_run(policy: Policy) -> None:
    reader, context = ContextReader(), ScoringContext(None, TrainerState(4, 8), "openai/gsm8k")
    encoded = [(PROMPT, policy.encode(PROMPT.problem))]
    episodes = EpisodePlayer(TriesEnvironment(3), reader)  # type: ignore[arg-type]
    scripted = Scripted([WRONG, RIGHT], [RIGHT])
    sample_responses(policy, encoded, [[5, 6]], SIZES, scripted, episodes, context)
    tokens = {text: [*policy.tokenizer.encode(text), 3] for text in (WRONG, RIGHT)}
    turns = [[WRONG, RIGHT], [RIGHT]]
    assert [
        [ids.tolist() for ids in seen.token_ids or ()]  # type: ignore[union-attr]
        for seen in reader.contexts
    ] == [[tokens[text] for text in texts] for texts in turns]
    for seen in reader.contexts:
        assert (seen.trainer_state, seen.data_source) == (TrainerState(4, 8), "openai/gsm8k")


def test_no_more_than_so_many_turns(policy: Policy) -> None:
    said = Scripted([WRONG, LOW], [WRONG, WRONG])
    for episode in play(policy, said, turns=2):
        assert len(episode.turns) == 2
        assert episode.turns[-1].feedback == "43 is too many."  # known, and no longer told
    assert len(said.asked) == 2


def test_a_turn_that_was_cut_off_is_the_last(policy: Policy) -> None:
    (episode,) = play(policy, Scripted(["so it is", ], ended=False), seeds=[1])  # fmt: skip
    assert not episode.finished
    assert len(episode.turns) == 1
    assert episode.turns[0].action == (0, 0)


def test_the_model_must_have_positions_for_another_turn(policy: Policy) -> None:
    long = Scripted([" a" * 960 + WRONG], [RIGHT])
    (episode,) = play(policy, long, seeds=[1])
    assert len(episode.turns) == 1


def test_without_an_environment_the_sampler_is_asked_as_ever(policy: Policy) -> None:
    said = Scripted([WRONG])
    ((found,),) = sample_responses(policy, [(PROMPT, policy.encode("?"))], [[4]], SIZES, said)
    assert found.turns == ()
    assert make_episode_player(TaskConfig(), ExactVerifier()) is None
    with pytest.raises(PoiseError, match="environment"):
        make_episode_player(TaskConfig(environment="trees"), ExactVerifier())


def test_the_trainer_scores_turns_as_the_sampler_drew_them(policy: Policy) -> None:
    task = load(levels=[1], size=6, heldout=1)
    with MathVerifier() as verifier:
        episodes = EpisodePlayer(TriesEnvironment(3), verifier)
        asked = [(prompt, policy.encode(prompt.problem)) for prompt in task.train]
        seeds = [[10 * p + g for g in range(4)] for p in range(len(asked))]
        found = episodes.play(policy, asked, seeds, SIZES, sample)
        alone = episodes.play(policy, asked[2:3], seeds[2:3], SIZES, sample)[0]
    for one, other in zip(found[2], alone, strict=True):  # neighbours change nothing
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.text == other.text
    rows = [
        Row(
            prompt.id, 1.0, len(r.tokens), index=g,
            rollout=Rollout(prompt.id, prompt.problem, prompt.answer, r.text, 0.0, tokens, r.tokens,
                            r.logprobs, r.finished, turns=r.turns),
        )
        for (prompt, tokens), drawn in zip(asked, found, strict=True)
        for g, r in enumerate(drawn)
    ]  # fmt: skip
    assert sum(len(row.content.turns) > 1 for row in rows) >= 3
    for row, logprobs_T in zip(rows, score_logprobs(policy, rows, 1.0, 500), strict=True):
        np.testing.assert_allclose(logprobs_T, row.content.sampled_logprobs, atol=1e-4)


def test_a_reply_is_what_the_chat_template_puts_between_two_turns(policy: Policy) -> None:
    whole = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."},
         {"role": "user", "content": "It is more."}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    ids = policy.tokenizer.encode(whole, add_special_tokens=False)
    turn = [*policy.tokenizer.encode("Two.", add_special_tokens=False), policy.end_tokens[0]]
    assert [*policy.encode("How many?"), *turn, *policy.encode_reply("It is more.")] == ids


def test_a_reply_without_a_template_stands_between_lines() -> None:
    made = tiny.policy()
    assert made.encode_reply("one two").tolist() == made.tokenizer.encode("one two")


def test_a_template_without_earlier_responses_is_refused(policy: Policy) -> None:
    tokenizer = deepcopy(policy.tokenizer)
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    with pytest.raises(PoiseError, match="there is no second turn"):
        replace(policy, tokenizer=tokenizer).encode_reply("It is more.")
