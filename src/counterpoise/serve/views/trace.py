"""Which training prompts moved the held-out answers of a run, update by update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from counterpoise.report.not_measured import explain_no_probes
from counterpoise.report.probe_trace.over_time import PromptInfluence, trace_over_time
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.discover import check_links
from counterpoise.serve.index.fates import born_in
from counterpoise.serve.index.table import RolloutTable
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import group_address
from counterpoise.serve.views.prompts import prompt_texts
from counterpoise.store.folder import RunFolder


def trace_view(reader: RunReader, table: RolloutTable) -> dict[str, Any]:
    """Movement of the answers over updates, and the prompts with the largest influence."""
    check_links(reader.folder, reader.roots)
    folder = RunFolder(reader.folder)
    if not folder.step_files("probes"):
        raise NotFoundError(explain_no_probes(folder, reader.name))
    probed_run = ProbedRun.open(reader.folder)
    trace = trace_over_time(probed_run)
    value, low, high = trace.agreement.correlation
    listed = [prompt.prompt_id for prompt in (*trace.raising, *trace.lowering)]
    texts = prompt_texts(reader, table, listed)
    return {
        "through": probed_run.through,
        "iterations": [update.iteration for update in trace.updates],
        "right": [update.right for update in trace.updates],
        "wrong": [update.wrong for update in trace.updates],
        "predicted": [update.predicted for update in trace.updates],
        "correlation": [_finite(number) for number in (value, low, high)],
        "explained": _finite(trace.agreement.explained),
        "raising": [_prompt(reader, prompt, texts) for prompt in trace.raising],
        "lowering": [_prompt(reader, prompt, texts) for prompt in trace.lowering],
        "prompts": trace.num_prompts,
        "problems": trace.num_problems,
        "left_out": trace.left_out,
    }


def _prompt(reader: RunReader, prompt: PromptInfluence, texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "prompt_id": prompt.prompt_id,
        "prompt": texts.get(prompt.prompt_id),  # None: not indexed yet, or not stored
        "total": prompt.total,
        "raising": prompt.raising,  # the number of updates in which it raised right answers
        "moving": prompt.moving,  # the number of updates in which it moved them
        "updates": [
            {
                "iteration": update.iteration,
                "change": update.change,
                # of the group that moved them most: a prompt may have several in an update
                "place": group_address(
                    reader.name, born_in(update.group, update.iteration), update.group
                ),
            }
            for update in prompt.updates
        ],
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
