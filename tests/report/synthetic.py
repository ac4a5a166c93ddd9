"""A run folder without a model: made-up responses through the real stages, written by the store."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.config.load import config_from_tables
from counterpoise.credit.assign import assign
from counterpoise.report.charts.quantities import PUSH_PARTS
from counterpoise.run import metrics
from counterpoise.store.folder import RunFolder
from counterpoise.task.contamination.items import BenchmarkItems, Item
from counterpoise.task.contamination.training_overlap import warn_of_overlap
from counterpoise.types import BatchPlan, Group, Prompt, Rollout, Row, StepResult, TokenTrace
from counterpoise.verify.scores import Scores

P, G, TARGET, STEPS = 6, 4, 16, 2
PIECES = ("The", " answer", " is", " ", "3", ".", "\n", "\\boxed{", "}")  # a response begins alike


def write_run(
    path: Path,
    iterations: int = 4,
    tau: float = 0.25,
    composer: str = "grouped",
    *,
    sign: str = "advantage",
    rollouts: bool = True,
    evaluations: bool = True,
    response: str = "The answer is 3.",
    prompt: str = "How many?",
    prompt_id: str = "made/up",
    model: str = "embedded",
    microscope: Literal["on", "off", "none"] = "on",  # none: no tokens are stored either
    pieces: Sequence[str] | None = PIECES,
) -> Path:
    config = config_from_tables(
        {
            "loop": {"iterations": 9},
            "model": {"name": model},
            "sample": {"prompts": P, "group_size": G},
            "balance": {"tau": tau, "target": TARGET, "sign": sign},
            "batch": {"composer": composer, "steps": STEPS},
        }
    )
    folder = RunFolder.create(path, config)
    rng = np.random.default_rng(0)
    buffer = RewardBalancedBuffer(tau=tau, target=TARGET, sign=sign)
    if pieces is not None:
        folder.write_vocabulary(pieces)
    if iterations:  # on a prompt that is in a benchmark
        copied = BenchmarkItems("judged by", [Item("e", prompt, "3")])
        warn_of_overlap([Prompt(prompt_id, prompt, "3")], [copied], folder, say=lambda line: None)
    if evaluations:
        folder.append("evaluations", evaluation(0, 0.25))
    for now in range(1, iterations + 1):
        groups = [
            group(f"{now}:{prompt_id}/{p}", now, rng, prompt, response, right=p + now - 3)
            for p in range(P)
        ]
        rows = assign(groups, "grpo")
        if tau:
            buffer.add(rows)
            taken = buffer.take(now)
            batch = list(taken.rows) if taken else []
        else:
            batch = [row for part in rows for row in part]
        plan = compose(composer, batch, STEPS, now) if batch else None
        made = iteration_of(now, groups, rows, batch, plan)
        if plan:
            folder.append("plans", metrics.plan_record(made))
        if rollouts:
            folder.write_rollouts(now, groups)
        clock = metrics.StageClock()
        clock.lap("sample")
        record = metrics.metrics_record(made, buffer, clock)
        if plan and microscope == "on":
            record |= seen(now)
        folder.append("metrics", record)
        if plan and microscope != "none":
            trace = metrics.token_trace(made).columns
            if microscope == "on":
                trace |= moved(trace, rng)
                folder.write_table("pushes", now, TokenTrace(pushes(trace, batch, rng)))
                folder.write_table("likely", now, TokenTrace(likely(trace, batch)))
            folder.write_table("tokens", now, TokenTrace(trace))
    if evaluations and iterations:
        folder.append("evaluations", evaluation(iterations, 0.5))
    return path


def group(
    key: str, now: int, rng: np.random.Generator, prompt: str, response: str, right: int
) -> Group:
    """G rollouts of which the first `right` are right."""
    made = []
    for i in range(G):
        tokens = np.arange(rng.integers(3, 9), dtype=np.int32)
        reward = float(i < right)
        lp = np.full(len(tokens), -0.5, np.float32)
        made.append(Rollout(key, prompt, "3", response, reward, tokens, tokens, lp))
    return Group(key, now, tuple(made))


def iteration_of(
    now: int,
    groups: list[Group],
    rows: list[list[Row]],
    batch: list[Row],
    plan: BatchPlan | None,
) -> metrics.IterationResult:
    return metrics.IterationResult(
        number=now,
        groups=groups,
        scores=Scores([]),
        credited_groups=rows,
        batch=batch,
        plan=plan,
        description=describe_plan(batch, plan) if plan else None,
        results=[step_result(batch, step) for step in plan.steps] if plan else [],
        measurements=[],
    )


def seen(now: int) -> dict[str, Any]:
    """What the monitor adds to a line of metrics.jsonl."""
    shares = {"boosted": 0.46, "suppressed": 0.41, "stable": 0.13, "moved": 0.01 * now}
    return {
        **{f"{k}_{sign}": v for k, v in shares.items() for sign in ("positive", "negative")},
        "flipped": 0.43,
        "cancellation": 0.7,
        "cancellation_types": [[4, 0.9, 0.5], [3, 0.25, 0.3], [999, 0.0, 0.2]],
        "own_share": 0.01,
        "same_token_share": 0.5,
        "proxy_agreement": 0.68,
        "shared_prefix_share": 0.3,
        "exchangeability": 1e-9,
        "learning_tax": 2e-5,
        "solution_drift": 0.02 * now,
        "lazy_likelihood": 0.3 * now,
        "monitor_seconds": 0.1,
    }


def moved(trace: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The columns the monitor adds to tokens/: heavy-tailed, of both signs."""
    size = len(trace["row"])
    return {
        name: (rng.normal(size=size) ** 3 * 0.01).astype(np.float32)
        for name in ("displacement", "own", *PUSH_PARTS)
    }


def pushes(trace: dict[str, Any], batch: list[Row], rng: np.random.Generator) -> dict[str, Any]:
    """Three up and three down for every token of the batch's first group."""
    row, position = trace["row"], trace["position"]
    watched = np.flatnonzero([batch[r].group == batch[0].group for r in row])
    pushed, by = np.repeat(watched, 6), rng.integers(len(row), size=6 * len(watched))
    push = np.abs(rng.normal(size=len(by))) * np.tile((1, 1, 1, -1, -1, -1), len(watched)) * 1e-3
    return {
        "row": row[pushed],
        "position": position[pushed],
        "by_row": row[by],
        "by_position": position[by],
        "push": push.astype(np.float32),
    }


def likely(trace: dict[str, Any], batch: list[Row]) -> dict[str, Any]:
    """For every token of the batch's first group: itself at 60 % -> 70 %, its neighbour at 30 %."""
    row, position = trace["row"], trace["position"]
    watched = np.repeat(np.flatnonzero([batch[r].group == batch[0].group for r in row]), 2)
    is_other = np.arange(len(watched)) % 2
    return {
        "row": row[watched],
        "position": position[watched],
        "token": (trace["token"][watched] + is_other).astype(np.int32),
        "logprob": np.log(np.where(is_other, 0.3, 0.6)).astype(np.float32),
        "new_logprob": np.log(np.where(is_other, 0.2, 0.7)).astype(np.float32),
    }


def step_result(batch: list[Row], step: tuple[int, ...]) -> StepResult:
    values = [np.full(batch[i].num_tokens, 0.1, np.float32) for i in step]
    logprobs = [np.linspace(-1, -0.1, batch[i].num_tokens, dtype=np.float32) for i in step]
    return StepResult(
        rows=step,
        logprobs=logprobs,
        old_logprobs=logprobs,
        advantages=[batch[i].advantages_T for i in step],
        entropies=values,
        pulls=values,
        coefficients=np.ones(len(step), np.float32),
        loss=0.0,
        grad_norm=0.7,
        clipped_share=0.0,
        tokens=sum(batch[i].num_tokens for i in step),
    )


def without_pull(path: Path, row: int, position: int) -> None:
    """As where the ratio clip takes one token of the last iteration out of the loss."""
    file = max((path / "tokens").iterdir())
    (path / "checksums.jsonl").unlink(missing_ok=True)  # the file is changed
    table = pq.read_table(file)
    here = (table["row"].to_numpy() == row) & (table["position"].to_numpy() == position)
    pull = pa.array(np.where(here, 0.0, table["pull"].to_numpy()).astype(np.float32))
    pq.write_table(table.set_column(table.column_names.index("pull"), "pull", pull), file)


def evaluation(iteration: int, mean: float) -> dict[str, Any]:
    interval = {"low": mean - 0.1, "high": mean + 0.1}
    return {"iteration": iteration, "mean": mean, **interval, "prompts": 16, "samples": 4}


def plan_of(rule: str, rows: list[Row], *steps: tuple[int, ...]) -> dict[str, Any]:
    return metrics.plan_record(iteration_of(1, [], [], rows, BatchPlan(rule, steps)))


class Page(HTMLParser):
    """The tags, attributes and visible text of a page, as a browser would split them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.styles = ""
        self.json: list[str] = []
        self._inside = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._inside = "json" if ("type", "application/json") in attrs else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.styles += data
        elif self._inside == "json":
            self.json.append(data)
        elif self._inside != "script":
            self.text += data

    @property
    def sections(self) -> list[str]:
        links = [value for name, value in self.attributes if name == "href"]
        return [link[1:] for link in links if link.startswith("#")]
