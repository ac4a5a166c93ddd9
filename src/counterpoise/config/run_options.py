"""Options of everything around the stages: the loop, evaluation, warm-up, monitor, storage."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.config.option import option
from counterpoise.variants import TRACKERS


@dataclass(frozen=True)
class LoopConfig:
    iterations: int = option(40, "iterations of the run; each samples once", at_least=1)
    seed: int = option(0, "seed of every random choice in the run", at_least=0)
    checkpoint_every: int = option(
        10, "iterations between checkpoints; one is saved at the end if store.model", at_least=1
    )
    keep_checkpoints: int = option(
        2,
        "number of checkpoints to keep; with two, a damaged one leaves another to resume from",
        at_least=1,
    )
    threads: int = option(0, "number of CPU threads; 0 leaves the choice to torch", at_least=0)


@dataclass(frozen=True)
class EvaluateConfig:
    prompts: int = option(
        128, "held-out problems to evaluate on before and after training; 0 is off", at_least=0
    )
    samples: int = option(4, "responses per held-out problem", at_least=1)
    settings: list[str] = option(
        ["training"],
        "how evaluation samples: 'training' (the training temperature and top-p) or "
        "TEMPERATURE/TOP_P such as '0.6/0.95'. Verdicts use the first; each one costs time",
    )
    every: int = option(0, "also evaluate every so many iterations; 0 is off", at_least=0)
    benchmarks: list[str] = option(
        [],
        "benchmarks to evaluate whenever held-out problems are, each NAME or NAME=SAMPLES "
        "('aime24=8'), named as in `poise eval --bench`",
    )
    data: str = option("", "benchmarks: folder of their files; if empty, the hub")
    limit: int = option(0, "benchmarks: only the first problems of each; 0: all", at_least=0)


@dataclass(frozen=True)
class WarmupConfig:
    steps: int = option(400, "number of supervised steps on worked solutions", at_least=1)
    batch: int = option(128, "problems per step", at_least=1)
    lr: float = option(
        5e-5,
        "peak learning rate, with linear warm-up over 5 % of the steps, cosine decay to a tenth. "
        "The default suits a pretrained model; a scratch model needs about 2e-3",
        at_least=0.0,
    )
    evaluate_every: int = option(
        0, "steps between evaluations of held-out success; 0 evaluates only at the end", at_least=0
    )
    until: float = option(
        0.0,
        "stop as soon as held-out success reaches this value; RL learns best from 0.25 to 0.6. "
        "0 is off",
        at_least=0.0,
        at_most=1.0,
    )
    hidden: int = option(160, "scratch model: hidden size", at_least=16)
    layers: int = option(4, "scratch model: number of layers", at_least=1)
    heads: int = option(4, "scratch model: query heads; half as many key/value heads", at_least=2)
    intermediate: int = option(448, "scratch model: width of the gated MLP", at_least=16)


@dataclass(frozen=True)
class MonitorConfig:
    every: int = option(
        1,
        "iterations between measurements of what the update did to every token; 0 is off. A "
        "measurement costs a forward pass over the batch and the coupling decomposition",
        at_least=0,
    )
    tokens: int = option(
        16384,
        "tokens of an iteration that are measured, sampled anew each time in whole forward passes; "
        "0 measures all",
        at_least=0,
    )
    watch: int = option(
        2,
        "number of groups in an iteration whose strongest pushes are stored for every token",
        at_least=0,
    )
    probe: int = option(
        0,
        "held-out answers to follow for `poise trace`, right and wrong responses of the model; 0 "
        "is off, or all of probe_file",
        at_least=0,
    )
    probe_every: int = option(
        0,
        "iterations between measurements of the probes; 0: enough to keep them within 10 % of a "
        "run's time on a GPU, 15 % on a CPU",
        at_least=0,
    )
    probe_through: str = option(
        "output_layer",
        "the parameters through which `poise trace` and sample.choose=aligned see rows push "
        "held-out answers. middle_layer finds copies of held-out problems and wrong references, "
        "all_parameters predicts best; both take a backward pass for every row and every answer",
        choices=("output_layer", "middle_layer", "all_parameters"),
    )
    probe_refresh: int = option(
        20,
        "iterations until probe answers are drawn anew, as the model changes; 0: never",
        at_least=0,
    )
    probe_file: str = option(
        "",
        "follow these answers instead: lines with prompt, response, reward, prompt_id",
    )

    @property
    def follows_probes(self) -> bool:
        return bool(self.probe or self.probe_file)

    @property
    def takes_gradients(self) -> bool:
        """Whether measuring the probes takes a backward pass for every row and every answer."""
        return self.probe_through != "output_layer"


@dataclass(frozen=True)
class StoreConfig:
    rollouts: bool = option(True, "write every rollout to rollouts/")
    tokens: bool = option(True, "write every trained token to tokens/ (parquet)")
    model: bool = option(
        True, "keep the trained model and the last checkpoint; false removes both at the end"
    )
    report: bool = option(
        True,
        "write report.html, and the files it needs: vocabulary.json and the rows of every plan",
    )


@dataclass(frozen=True)
class TrackConfig:
    to: list[str] = option(
        [],
        "trackers that receive every line of metrics.jsonl and evaluations.jsonl as it is written",
        choices=tuple(TRACKERS),
    )
