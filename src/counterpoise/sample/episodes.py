"""Multi-turn episodes: the policy responds, an environment replies, the policy responds again.

    prompt | turn 1 | reply | turn 2 | reply | turn 3         trained tokens: those of the turns

An episode ends when the environment has nothing to reply, after `task.turns` turns, after a turn
that was cut off (a reply can only follow an end token), or when the model has too few positions
left for another turn. All open episodes take their next turn in one call of the sampler. A turn's
seed is a function of the episode's seed, so episodes do not depend on each other.
`sample.max_new_tokens` limits each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from counterpoise.config import SampleConfig, TaskConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.model.pieces import split_into_pieces, token_span
from counterpoise.sample.sampler import SampleFunction
from counterpoise.seeds import seed_for
from counterpoise.task.environment import Environment, EpisodeSession, SessionEnvironment
from counterpoise.types import Ints, Prompt, Response, Turn
from counterpoise.variants import ENVIRONMENTS
from counterpoise.verify.scores import (
    NO_CONTEXT,
    Scores,
    ScoringContext,
    Verifier,
    are_binary,
    score_responses,
)

END_FEEDBACK = "The episode is over."  # on a last turn that failed and got no reply
NO_TOKENS: Ints = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Episode:
    """One rollout while it is being played."""

    prompt: Prompt
    sequence: Ints  # all tokens so far: prompt, observations and responses
    seed: int
    responses: list[Response] = field(default_factory=list)
    observations: list[Ints] = field(default_factory=list)  # what preceded each response
    turns: list[Turn] = field(default_factory=list)
    is_over: bool = False  # the environment has ended the episode
    # Only with a SessionEnvironment: the sum of its rewards so far, its session of this episode,
    # and the tokens of its first message, which replaces the problem.
    reward: float | None = None
    session: EpisodeSession | None = None
    prompt_tokens: Ints | None = None
    first_message: str = ""

    def add_response(self, observation: Ints, response: Response) -> None:
        """Append one turn: what the environment said and what the policy answered."""
        self.sequence = np.concatenate((self.sequence, observation, response.tokens))
        self.observations.append(observation)
        self.responses.append(response)

    def add_feedback(self, action: tuple[int, int], feedback: str) -> None:
        """Record the environment's feedback on the last response.

        `action` is the token span of the action within that response, (0, 0) if there is none.
        """
        turn_start = sum(len(response.tokens) for response in self.responses[:-1])
        span = (turn_start + action[0], turn_start + action[1]) if action[1] else (0, 0)
        self.turns.append(Turn(turn_start, self.observations[-1], span, feedback))

    def build_response(self, policy: Policy) -> Response:
        """The episode as one response: the policy's tokens, and the text of the whole dialogue."""
        observation_texts = policy.decode_rows(self.observations)
        dialogue = [
            text
            for observation_text, response in zip(observation_texts, self.responses, strict=True)
            for text in (observation_text, response.text)
        ]
        return Response(
            tokens=np.concatenate([response.tokens for response in self.responses]),
            logprobs=np.concatenate([response.logprobs for response in self.responses]),
            text="\n".join(dialogue[1:]),  # the observation before the first turn is empty
            finished=self.responses[-1].finished,
            turns=tuple(self.turns),
            reward=self.reward,
            prompt_tokens=self.prompt_tokens,
            first_message=self.first_message,
        )


@dataclass(frozen=True, slots=True)
class EpisodePlayer:
    """Turns prompts into multi-turn responses by alternating policy and environment."""

    environment: Environment
    verifier: Verifier  # decides whether a turn solved the problem

    def play(
        self,
        policy: Policy,
        prompts: Sequence[tuple[Prompt, Ints]],
        seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
        sample: SampleFunction,
        context: ScoringContext = NO_CONTEXT,
    ) -> list[list[Response]]:
        """Episodes for every prompt, one for each of its seeds.

        The verifier reads `context` when it judges a turn, with the token ids of that turn in it.
        """
        episodes_PG = [
            self._start_episodes(policy, prompt, tokens, seeds, config)
            for (prompt, tokens), seeds in zip(prompts, seeds_PG, strict=True)
        ]
        first_prompts = [group[0].sequence for group in episodes_PG]
        first_responses = sample(policy, first_prompts, seeds_PG, config)
        episodes = [episode for group in episodes_PG for episode in group]
        for episode, response in zip(episodes, chain.from_iterable(first_responses), strict=True):
            episode.add_response(NO_TOKENS, response)
        self._add_feedback(policy, episodes, context)
        for turn in range(1, self.environment.turns):
            open_episodes = [
                (episode, observation)
                for episode in episodes
                if (observation := self._observe(policy, episode, turn, config)) is not None
            ]
            if not open_episodes:
                break
            prefixes = [
                np.concatenate((episode.sequence, observation))
                for episode, observation in open_episodes
            ]
            turn_seeds = [[seed_for(episode.seed, "turn", turn)] for episode, _ in open_episodes]
            turn_responses = sample(policy, prefixes, turn_seeds, config)
            for (episode, observation), (response,) in zip(
                open_episodes, turn_responses, strict=True
            ):
                episode.add_response(observation, response)
            self._add_feedback(policy, [episode for episode, _ in open_episodes], context)
        responses_left = iter(episode.build_response(policy) for episode in episodes)
        return [[next(responses_left) for _ in seeds] for seeds in seeds_PG]

    def _start_episodes(
        self,
        policy: Policy,
        prompt: Prompt,
        tokens: Ints,
        seeds: Sequence[int],
        config: SampleConfig,
    ) -> list[Episode]:
        """The episodes of one problem, before their first turn."""
        return [Episode(prompt, tokens, seed) for seed in seeds]

    def _score_last_turns(
        self, episodes: Sequence[Episode], context: ScoringContext
    ) -> list[float]:
        """The verifier's rewards for the last response of every episode."""
        responses = [episode.responses[-1] for episode in episodes]
        return score_responses(
            self.verifier,
            [response.text for response in responses],
            [episode.prompt for episode in episodes],
            replace(context, token_ids=[response.tokens for response in responses]),
        ).rewards

    def _add_feedback(
        self, policy: Policy, episodes: Sequence[Episode], context: ScoringContext
    ) -> None:
        """Verify the last response of every episode and record the environment's feedback."""
        responses = [episode.responses[-1] for episode in episodes]
        rewards = self._score_last_turns(episodes, context)
        pieces_R = split_into_pieces(policy, [response.tokens for response in responses])
        for episode, response, reward, pieces in zip(
            episodes, responses, rewards, pieces_R, strict=True
        ):
            span = token_span(pieces, *self.environment.answer_span("".join(pieces)))
            feedback = self.environment.feedback(episode.prompt, response.text, reward > 0)
            episode.add_feedback(span, feedback)
            episode.is_over = not feedback

    def _observe(
        self, policy: Policy, episode: Episode, turn: int, config: SampleConfig
    ) -> Ints | None:
        """The tokens that the policy reads before its next turn; None if the episode is over."""
        # An episode with fewer responses than turns ended earlier. A response that was cut off has
        # no end token that a reply could follow.
        has_ended = len(episode.responses) < turn or not episode.responses[-1].finished
        if has_ended or episode.is_over:
            return None
        reply = self.environment.next_message(episode.prompt, episode.turns[-1].feedback)
        tokens = policy.encode_reply(reply)
        positions = policy.decoder.max_positions
        positions_left = positions - len(episode.sequence) - len(tokens) - config.max_new_tokens
        return tokens if positions_left >= 0 else None


class SessionEpisodePlayer(EpisodePlayer):
    """Plays episodes with a session for each, which may also give the rewards."""

    def _start_episodes(
        self,
        policy: Policy,
        prompt: Prompt,
        tokens: Ints,
        seeds: Sequence[int],
        config: SampleConfig,
    ) -> list[Episode]:
        assert isinstance(self.environment, SessionEnvironment)
        sessions = [self.environment.open_session() for _ in seeds]
        messages = [
            session.reset(prompt, seed) for session, seed in zip(sessions, seeds, strict=True)
        ]
        # Rollouts of a group must share a prompt: credit compares them, and forward passes compute
        # the prompt only once.
        if len(set(messages)) > 1:
            raise PoiseError(
                f"{self.environment.label}: reset returned different first messages for "
                f"{prompt.id}: return the same one for all episodes of a problem"
            )
        first_message_tokens = None
        if messages[0] is not None:
            first_message_tokens = policy.encode(replace(prompt, problem=messages[0], messages=()))
            if len(first_message_tokens) > config.max_prompt_tokens:
                raise PoiseError(
                    f"{self.environment.label}: the first message for {prompt.id} has "
                    f"{len(first_message_tokens)} tokens: raise sample.max_prompt_tokens="
                    f"{config.max_prompt_tokens} or shorten it"
                )
        sequence = tokens if first_message_tokens is None else first_message_tokens
        return [
            Episode(
                prompt,
                sequence,
                seed,
                session=session,
                prompt_tokens=first_message_tokens,
                first_message=messages[0] or "",
            )
            for session, seed in zip(sessions, seeds, strict=True)
        ]

    def _add_feedback(
        self, policy: Policy, episodes: Sequence[Episode], context: ScoringContext
    ) -> None:
        """Let each session judge its last response.

        As with built-in environments, the feedback is "" where the episode ended in success.
        """
        outcomes = []
        for episode in episodes:
            assert episode.session is not None
            outcome = episode.session.step(episode.responses[-1].text, episode.prompt)
            if outcome.reward is not None:
                episode.reward = (episode.reward or 0.0) + outcome.reward
            episode.is_over = outcome.is_done
            outcomes.append(outcome)
        unscored = [episode for episode in episodes if episode.is_over and episode.reward is None]
        verified_rewards = iter(self._score_last_turns(unscored, context) if unscored else ())
        spans = self._find_actions(policy, episodes)
        for episode, outcome, span in zip(episodes, outcomes, spans, strict=True):
            feedback = outcome.reply
            if episode.is_over:
                reward = next(verified_rewards) if episode.reward is None else episode.reward
                is_success = reward > 0 if outcome.is_success is None else outcome.is_success
                feedback = "" if is_success else outcome.reply or END_FEEDBACK
            episode.add_feedback(span, feedback)

    def _find_actions(self, policy: Policy, episodes: Sequence[Episode]) -> list[tuple[int, int]]:
        """The token spans of the last turns' actions; (0, 0) if the environment marks none."""
        assert isinstance(self.environment, SessionEnvironment)
        if not self.environment.marks_actions:
            return [(0, 0)] * len(episodes)
        pieces_R = split_into_pieces(policy, [episode.responses[-1].tokens for episode in episodes])
        spans = []
        for episode, pieces in zip(episodes, pieces_R, strict=True):
            assert episode.session is not None
            action = episode.session.action("".join(pieces), episode.prompt)
            spans.append(token_span(pieces, *action))
        return spans


def score_episodes(
    verifier: Verifier,
    responses: Sequence[Response],
    prompts: Sequence[Prompt],
    context: ScoringContext = NO_CONTEXT,
) -> Scores:
    """The environment's rewards where it gave any, and the verifier's elsewhere.

    The token ids come from the responses, so `context` needs none.
    """
    unscored = [i for i, response in enumerate(responses) if response.reward is None]
    if not unscored:
        rewards = [response.reward or 0.0 for response in responses]
        return Scores(rewards, graded=not are_binary(rewards))
    scores = score_responses(
        verifier,
        [responses[i].text for i in unscored],
        [prompts[i] for i in unscored],
        replace(context, token_ids=[responses[i].tokens for i in unscored]),
    )
    if len(unscored) == len(responses):
        return scores
    verified_rewards = dict(zip(unscored, scores.rewards, strict=True))
    logged = dict(zip(unscored, scores.logged, strict=True)) if scores.logged else {}
    rewards = [
        verified_rewards[i] if response.reward is None else response.reward
        for i, response in enumerate(responses)
    ]
    return replace(
        scores,
        rewards=rewards,
        graded=scores.graded or not are_binary(rewards),
        logged=[logged.get(i, {}) for i in range(len(responses))] if logged else [],
    )


def make_episode_player(config: TaskConfig, verifier: Verifier) -> EpisodePlayer | None:
    """The player for `task.environment`; None if there is no environment."""
    if config.environment == "none":
        return None
    environment = ENVIRONMENTS.load(config.environment)(config.turns)
    has_sessions = isinstance(environment, SessionEnvironment)
    player = SessionEpisodePlayer if has_sessions else EpisodePlayer
    return player(environment, verifier)


def sample_responses(
    policy: Policy,
    prompts: Sequence[tuple[Prompt, Ints]],
    seeds_PG: Sequence[Sequence[int]],
    config: SampleConfig,
    sample: SampleFunction,
    episodes: EpisodePlayer | None = None,
    context: ScoringContext = NO_CONTEXT,
) -> list[list[Response]]:
    """Responses for every prompt; whole episodes if there is an environment to play with.

    `context` is for the verifier that judges the turns of an episode.
    """
    if episodes is None:
        return sample(policy, [tokens for _, tokens in prompts], seeds_PG, config)
    return episodes.play(policy, prompts, seeds_PG, config, sample, context)
