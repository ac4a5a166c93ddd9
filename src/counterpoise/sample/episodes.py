"""Episodes: a response, what an environment says to it, another turn, and so on.

    prompt | turn 1 | told | turn 2 | told | turn 3           tokens of the policy: the turns alone

An episode ends when there is nothing to say, after `turns` of them, with a turn that was cut off
(it has no end to be answered after), and where the model has no positions left for another. All
open episodes of a draw take their next turn together. A turn's seed is a function of the episode's,
so an episode depends on no other. `sample.max_new_tokens` cuts every turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from counterpoise.config import SampleConfig, TaskConfig
from counterpoise.model.load import Policy
from counterpoise.model.pieces import split_into_pieces, token_span
from counterpoise.sample.sampler import SampleFunction
from counterpoise.seeds import seed_for
from counterpoise.task.environment import Environment
from counterpoise.types import Ints, Prompt, Response, Turn
from counterpoise.variants import ENVIRONMENTS
from counterpoise.verify.scores import Verifier, verified

NO_TOKENS: Ints = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Episode:
    """One rollout while it is played."""

    prompt: Prompt
    sequence: Ints  # everything the policy has read and written
    seed: int
    responses: list[Response] = field(default_factory=list)
    observations: list[Ints] = field(default_factory=list)  # before each of them
    turns: list[Turn] = field(default_factory=list)

    def take(self, observation: Ints, response: Response) -> None:
        self.sequence = np.concatenate((self.sequence, observation, response.tokens))
        self.observations.append(observation)
        self.responses.append(response)

    def judged(self, action: tuple[int, int], feedback: str) -> None:
        """The environment's word on the turn that was taken last; `action` in its own tokens."""
        start = sum(len(response.tokens) for response in self.responses[:-1])
        span = (start + action[0], start + action[1]) if action[1] else (0, 0)
        self.turns.append(Turn(start, self.observations[-1], span, feedback))

    def response(self, policy: Policy) -> Response:
        said = policy.decode_rows(self.observations)
        voices = [part for r, t in zip(self.responses, said, strict=True) for part in (t, r.text)]
        return Response(
            tokens=np.concatenate([r.tokens for r in self.responses]),
            logprobs=np.concatenate([r.logprobs for r in self.responses]),
            text="\n".join(voices[1:]),  # nothing was told before the first turn
            finished=self.responses[-1].finished,
            turns=tuple(self.turns),
        )


@dataclass(frozen=True, slots=True)
class EpisodePlayer:
    """How prompts become responses where an environment answers."""

    environment: Environment
    verifier: Verifier  # says what is right

    def play(
        self,
        policy: Policy,
        prompts: Sequence[tuple[Prompt, Ints]],
        seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
        sample: SampleFunction,
    ) -> list[list[Response]]:
        """Episodes for every prompt, one for each of its seeds."""
        first = sample(policy, [tokens for _, tokens in prompts], seeds_PG, config)
        played = []
        for (prompt, tokens), seeds, responses in zip(prompts, seeds_PG, first, strict=True):
            for seed, response in zip(seeds, responses, strict=True):
                played.append(Episode(prompt, tokens, seed))
                played[-1].take(NO_TOKENS, response)
        self._judge(policy, played)
        for turn in range(1, self.environment.turns):
            told = [self._told(policy, episode, turn, config) for episode in played]
            going = [(e, said) for e, said in zip(played, told, strict=True) if said is not None]
            if not going:
                break
            prefixes = [np.concatenate((e.sequence, said)) for e, said in going]
            own = [[seed_for(e.seed, "turn", turn)] for e, _ in going]
            drawn = sample(policy, prefixes, own, config)
            for (episode, said), (response,) in zip(going, drawn, strict=True):
                episode.take(said, response)
            self._judge(policy, [episode for episode, _ in going])
        flat = iter(episode.response(policy) for episode in played)
        return [[next(flat) for _ in seeds] for seeds in seeds_PG]

    def _judge(self, policy: Policy, episodes: Sequence[Episode]) -> None:
        """What the environment says of everyone's last turn."""
        last = [episode.responses[-1] for episode in episodes]
        prompts = [episode.prompt for episode in episodes]
        rewards = verified(self.verifier, [response.text for response in last], prompts).rewards
        split = split_into_pieces(policy, [response.tokens for response in last])
        for episode, response, reward, pieces in zip(episodes, last, rewards, split, strict=True):
            span = token_span(pieces, *self.environment.action("".join(pieces)))
            feedback = self.environment.feedback(episode.prompt, response.text, reward > 0)
            episode.judged(span, feedback)

    def _told(
        self, policy: Policy, episode: Episode, turn: int, config: SampleConfig
    ) -> Ints | None:
        """What comes before the next turn; None: the episode is over."""
        over = len(episode.responses) < turn or not episode.responses[-1].finished
        if over or not (feedback := episode.turns[-1].feedback):
            return None
        tokens = policy.encode_reply(self.environment.ask(episode.prompt, feedback))
        positions = policy.decoder.config.max_position_embeddings
        room = positions - len(episode.sequence) - len(tokens) - config.max_new_tokens
        return tokens if room >= 0 else None


def make_episode_player(config: TaskConfig, verifier: Verifier) -> EpisodePlayer | None:
    """None without an environment."""
    if config.environment == "none":
        return None
    return EpisodePlayer(ENVIRONMENTS.load(config.environment)(config.turns), verifier)


def sample_responses(
    policy: Policy,
    prompts: Sequence[tuple[Prompt, Ints]],
    seeds_PG: Sequence[Sequence[int]],
    config: SampleConfig,
    sample: SampleFunction,
    episodes: EpisodePlayer | None = None,
) -> list[list[Response]]:
    """Responses for every prompt: episodes where an environment answers."""
    if episodes is None:
        return sample(policy, [tokens for _, tokens in prompts], seeds_PG, config)
    return episodes.play(policy, prompts, seeds_PG, config, sample)
