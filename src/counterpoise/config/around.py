"""Options of what goes on around the stages: the loop, judging, looking, storing, tracking."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.config.option import option
from counterpoise.variants import TRACKERS


@dataclass(frozen=True)
class LoopConfig:
    iterations: int = option(40, "sampling rounds of the run", at_least=1)
    seed: int = option(0, "every random choice of the run follows from it", at_least=0)
    checkpoint_every: int = option(
        10, "iterations between checkpoints; the last is always kept", at_least=1
    )
    keep_checkpoints: int = option(
        2, "older ones are removed; two, so that a damaged one has a predecessor", at_least=1
    )
    threads: int = option(0, "CPU threads; 0 leaves torch's own choice", at_least=0)


@dataclass(frozen=True)
class EvaluateConfig:
    prompts: int = option(
        128, "held-out problems judged before and after training; 0 is off", at_least=0
    )
    samples: int = option(4, "responses for each", at_least=1)
    settings: list[str] = option(
        ["training"],
        "how they are sampled: 'training' (its temperature and top-p) or TEMPERATURE/TOP_P such as "
        "'0.6/0.95'; the first one counts, every one costs the same",
    )
    every: int = option(0, "also every so many iterations; 0 is off", at_least=0)


@dataclass(frozen=True)
class WarmupConfig:
    steps: int = option(400, "supervised steps on worked solutions", at_least=1)
    batch: int = option(128, "problems per step", at_least=1)
    lr: float = option(
        5e-5,
        "peak learning rate; linear warm-up over 5 %, cosine decay to a tenth. The default suits "
        "a pretrained model; one from nothing learns at about 2e-3",
        at_least=0.0,
    )
    evaluate_every: int = option(
        0, "steps between looks at held-out success; 0 looks at the end only", at_least=0
    )
    until: float = option(
        0.0,
        "stop as soon as held-out success is this high and keep that model: RL learns best from "
        "0.25 to 0.6; 0 is off",
        at_least=0.0,
        at_most=1.0,
    )
    hidden: int = option(160, "scratch model: hidden size", at_least=16)
    layers: int = option(4, "scratch model: layers", at_least=1)
    heads: int = option(4, "scratch model: query heads (half as many key/value heads)", at_least=2)
    intermediate: int = option(448, "scratch model: width of the gated MLP", at_least=16)


@dataclass(frozen=True)
class MonitorConfig:
    every: int = option(
        1,
        "iterations between looks at what the update did to every token; 0 is off. A look costs "
        "one forward pass of the batch and the coupling decomposition",
        at_least=0,
    )
    tokens: int = option(
        16384,
        "tokens of an iteration that a look is for, in whole passes of the update, drawn anew each "
        "time; all tokens of a step count as what pushes them. 0: every token",
        at_least=0,
    )
    watch: int = option(
        2,
        "groups of an iteration for whose tokens the strongest pushes are stored, token by token",
        at_least=0,
    )


@dataclass(frozen=True)
class StoreConfig:
    rollouts: bool = option(True, "write every rollout to rollouts/")
    tokens: bool = option(True, "write every trained token to tokens/ (parquet)")
    model: bool = option(
        True, "keep the trained model, and the last checkpoint; false leaves neither at the end"
    )
    report: bool = option(
        True, "write report.html, and for it vocabulary.json and the rows of every plan"
    )


@dataclass(frozen=True)
class TrackConfig:
    to: list[str] = option(
        [],
        "trackers that are sent every line of metrics.jsonl and evaluations.jsonl as it is written",
        choices=tuple(TRACKERS),
    )
