"""Every random choice of a run is a pure function of (run seed, stage, step, index).

There is no hidden global random state, so a resumed run needs none restored, a rollout does not
depend on how many others were drawn before it, and two stages never share a stream. The one
exception: the initial weights of a `scratch` model come from torch's generator, seeded with
`loop.seed`.

    stage                      run seed       step, index         decides
    prompts                    loop.seed      epoch               order of training prompts
    refill                     loop.seed      iteration           order of replacement prompts
    pools                      loop.seed      iteration           draw from difficulty pools
    sample                     loop.seed      iteration, p G + g  one rollout
    turn                       the rollout's  turn                a later turn of an episode
    compose                    loop.seed      iteration           ties and order in a plan
    monitor                    loop.seed      iteration           which passes are measured
    probe                      loop.seed      iteration, sample   a held-out answer to follow
    probe_halves               loop.seed                          its half
    oar_g                      loop.seed      iteration, draw     noise on embeddings
    clip_cov                   loop.seed      iteration, step     tokens left out
    rule                       loop.seed      iteration, step     rng of a step rule of your own
    evaluate                   loop.seed      problem, sample     one held-out sample
    eval/BENCHMARK/ID          --seed         sample              one sample of poise eval
    warmup                     loop.seed      step                problems of a supervised step
    second turns               loop.seed      problem             first turn of a warm-up's example
    trl                        loop.seed      iteration, process  draws of TRL's sampler
    word_problems/SPLIT/LEVEL  task.seed      index, attempt      one problem
    code_problems/SPLIT/LEVEL  task.seed      index, attempt      one problem
    role_play/SPLIT/LEVEL      task.seed      index, attempt      one problem
    reasoning_gym/SPLIT        task.seed                          the generator's seed
    textarena/SPLIT            task.seed      index               one game

P prompts with G rollouts each have the indices p G + g.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def seed_for(run_seed: int, stage: str, step: int = 0, index: int = 0) -> int:
    """A 63-bit seed for one choice of one stage.

    Example:
        >>> seed_for(0, "sample", step=3, index=7) == seed_for(0, "sample", step=3, index=7)
        True
        >>> seed_for(0, "sample", step=3, index=7) == seed_for(0, "compose", step=3, index=7)
        False
    """
    key = f"{run_seed}/{stage}/{step}/{index}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 1


def rng_for(run_seed: int, stage: str, step: int = 0, index: int = 0) -> np.random.Generator:
    """A numpy generator seeded by `seed_for`."""
    return np.random.default_rng(seed_for(run_seed, stage, step, index))
