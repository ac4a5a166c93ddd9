"""An episode of prime-rl's traces -> its rollouts.

    episode = {"id", "env": {"id", "name"}, "group": {"id"}, "task": {"key", "data"},
               "run": {"work": {"type": "train", "step"}}, "ok", "traces": [trace, ...]}
    trace   = {"version": 1, "id", "nodes", "rewards": {name: {"score", "weight"}}, "info",
               "stop_condition", "calls", "agent": {"trainable"}, "ok"}
    node    = {"parent", "message", "token_ids", "mask", "logprobs", ...}

A trace is a graph of messages. Each path from a root to a leaf is a branch, and each branch is one
training sample: the tokens of its nodes, concatenated. `mask` marks the tokens that the model
sampled, and `logprobs` and `advantages` hold numbers for these tokens only. A sampled message on
several branches is trained in the first of them and is context in the others, as in prime-rl since
2026-07-08 (b453f40d). The reward is the weighted sum of `rewards`. Before August 2026 a line was a
single trace, with env_name and group_id in `info`.

Annotations add what became known later: {"version": 1, "trace_id", "info", "branches": [{"index",
"advantages" | "trainer_logprobs" | "entropies": [...]}]}, in lists over all tokens of the branch,
null where unknown. Later annotations replace earlier ones.

Read in prime-rl at 048a6e23, 65a18584, 96e0cf47 and 559b4477 (orchestrator/trajectories.py) and in
verifiers at 00eee6c6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportedRollout,
    answer_text,
    check_reward,
    hash_prompt,
    hash_tokens,
    render_text,
)
from counterpoise.hosts.importing.json_lines import is_step
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.hosts.importing.token_spans import is_token_list, select_numbers, split_by_mask

TRACE_VERSION = ANNOTATION_VERSION = 1
KNOWN_VERSIONS = "version 1, as in prime-rl of September 2026, can be read"
# Reasons to stop that verifiers counts as cut off, besides an answer that ran out of length.
TRUNCATING_STOPS = {
    "max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed",
}  # fmt: skip


# What is left out, as sentences of ImportNotes.
EVALUATION = "left out: {} of evaluations"
FAILED = "left out: {} that failed without a trace"


def read_object(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A field that is a JSON object; {} where it is absent or anything else."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def read_list(record: dict[str, Any], name: str) -> list[Any]:
    """A field that is a list; [] where it is absent or anything else."""
    value = record.get(name)
    return value if isinstance(value, list) else []


def is_episode(record: dict[str, Any]) -> bool:
    return isinstance(record.get("traces"), list) or is_trace(record)


def is_trace(record: dict[str, Any]) -> bool:
    return isinstance(record.get("nodes"), list) and "rewards" in record


def list_traces(episode: dict[str, Any]) -> list[dict[str, Any]]:
    """The traces of a line, which is an episode or, in older files, a trace."""
    traces = [episode] if is_trace(episode) else read_list(episode, "traces")
    return [trace for trace in traces if isinstance(trace, dict)]


def is_training(episode: dict[str, Any]) -> bool:
    """Whether the policy was sampled to train it, not to evaluate it."""
    for trace in list_traces(episode):
        kind = read_object(trace, "info").get("kind")
        if kind in ("train", "eval"):
            return bool(kind == "train")
    run = read_object(episode, "run")
    return (read_object(run, "work").get("type") or run.get("type") or "train") == "train"


def arrival_step(episode: dict[str, Any]) -> int | None:
    """The step in which the episode arrived, or was started if its arrival is not recorded."""
    infos = [read_object(trace, "info") for trace in list_traces(episode)]
    steps = [
        read_object(info, event).get("step") for event in ("arrival", "dispatch") for info in infos
    ]
    run = read_object(episode, "run")
    steps += [read_object(run, "work").get("step"), run.get("step")]
    return next((step for step in steps if is_step(step)), None)


def episode_rollouts(
    episode: dict[str, Any],
    step: int,
    annotations_of_trace: dict[str, list[dict[str, Any]]],
    notes: ImportNotes,
    where: str,
) -> Iterator[tuple[str, ImportedRollout]]:
    """(id of its trace, rollout) for every branch that could be trained."""
    for trace in list_traces(episode):
        version = trace.get("version", TRACE_VERSION)
        if version != TRACE_VERSION:
            raise PoiseError(f"{where}: a trace of version {version!r}: {KNOWN_VERSIONS}")
        if read_object(trace, "agent").get("trainable") is False:
            notes.count("left out: {} of agents that are not trained", "trace")
            continue
        reward = _total_reward(trace.get("rewards"), where)
        if reward is None:
            notes.count("left out: {} without a reward", "trace")
            continue
        trace_id = str(trace.get("id"))
        annotations = annotations_of_trace.get(trace_id, [])
        for branch_index, path in enumerate(branch_paths(read_list(trace, "nodes"), where)):
            if not path:
                notes.count(
                    "left out: {} of compactions that were not resumed from", "message path"
                )
                continue
            annotated_lists = _annotated_lists(annotations, branch_index)
            rollout = _branch_rollout(episode, trace, path, annotated_lists, reward, step, where)
            if rollout is None:
                # Also a branch of which an earlier one trains all that it sampled.
                notes.count("left out: {} without a token to train", "message path")
            else:
                yield trace_id, rollout


def _total_reward(rewards: object, where: str) -> float | None:
    """The sum of score times weight; None if nothing was scored."""
    if not isinstance(rewards, dict):
        raise PoiseError(f"{where}: 'rewards' is not a JSON object: {KNOWN_VERSIONS}")
    total: float | None = None
    for reward in rewards.values():
        if isinstance(reward, dict):
            weight = reward.get("weight")
            score = check_reward(reward.get("score"), where)
            value = score * (1.0 if weight is None else check_reward(weight, where))
        elif reward is None:
            continue
        else:
            value = check_reward(reward, where)
        total = value if total is None else total + value
    return total


def branch_paths(nodes: Sequence[Any], where: str) -> list[list[dict[str, Any]]]:
    """The nodes of each branch from root to leaf, in the order of leaves.

    A branch that is not trained is an empty list, so that the others keep their numbers. A node
    that an earlier branch trains has a mask that is all False.
    """
    if not all(isinstance(node, dict) for node in nodes):
        raise PoiseError(f"{where}: 'nodes' holds something else than messages: {KNOWN_VERSIONS}")
    parents = {parent for node in nodes if isinstance(parent := node.get("parent"), int)}
    links = [
        (link.get("node"), link.get("type"), node_index)
        for node_index, node in enumerate(nodes)
        for link in read_list(node, "semantic_parents")
        if isinstance(link, dict)
    ]
    # A compaction that the agent did not resume from is a branch that is not trained.
    attempts = {node_index for _, kind, node_index in links if kind == "compaction_attempt"}
    accepted = {source for source, kind, _ in links if kind == "compaction"}
    paths: list[list[dict[str, Any]]] = []
    trained: set[int] = set()  # indices of the nodes on earlier branches
    for leaf in (node_index for node_index in range(len(nodes)) if node_index not in parents):
        path: list[int] = []
        node_index: Any = leaf
        while (
            isinstance(node_index, int) and 0 <= node_index < len(nodes) and len(path) <= len(nodes)
        ):
            path.append(node_index)
            node_index = nodes[node_index].get("parent")
        if len(path) > len(nodes):
            raise PoiseError(f"{where}: the messages of a trace form a circle: remove the line")
        if leaf in attempts - accepted:
            paths.append([])
            continue
        paths.append(
            [
                _as_context(nodes[index]) if index in trained else nodes[index]
                for index in reversed(path)
            ]
        )
        trained.update(path)
    return paths


def _as_context(node: dict[str, Any]) -> dict[str, Any]:
    """The node with no token marked as sampled."""
    return node | {"mask": [False] * len(read_list(node, "mask"))}


def _annotated_lists(annotations: Sequence[dict[str, Any]], branch_index: int) -> dict[str, Any]:
    """The lists that annotations add to a branch; later ones replace earlier ones."""
    annotated_lists: dict[str, Any] = {}
    for annotation in annotations:
        for branch in read_list(annotation, "branches"):
            if isinstance(branch, dict) and branch.get("index") == branch_index:
                annotated_lists |= branch
    return annotated_lists


def _branch_rollout(
    episode: dict[str, Any],
    trace: dict[str, Any],
    path: list[dict[str, Any]],
    annotated_lists: dict[str, Any],
    reward: float,
    step: int,
    where: str,
) -> ImportedRollout | None:
    tokens: list[int] = []
    mask: list[bool] = []
    for node in path:
        node_tokens, node_mask = node.get("token_ids") or [], read_list(node, "mask")
        if not is_token_list(node_tokens) or len(node_tokens) != len(node_mask):
            raise PoiseError(
                f"{where}: token_ids and mask of a message do not match: remove the line"
            )
        tokens += node_tokens
        mask += map(bool, node_mask)
    spans = split_by_mask(tokens, mask)
    if spans is None:
        return None
    advantages = select_numbers(annotated_lists.get("advantages"), spans.trained_positions)
    advantages = advantages or _node_numbers(path, "advantages")
    trace_advantage = select_numbers([read_object(trace, "info").get("advantage")], [0])
    mean_advantage = sum(advantages) / len(advantages) if advantages else None
    first_sampled = next(
        node_index for node_index, node in enumerate(path) if any(read_list(node, "mask"))
    )
    messages = [read_object(node, "message") for node in path]
    env_name, prompt_id, group = _names(episode, trace, spans.prompt)
    return ImportedRollout(
        group=f"{step}:{env_name}/{group}",
        prompt_id=f"{env_name}/{prompt_id}",
        reward=reward,
        prompt=render_text(_with_reasoning(messages[:first_sampled]), where),
        response=render_text(_with_reasoning(messages[first_sampled:]), where),
        answer=_answer(episode, trace),
        prompt_tokens=spans.prompt,
        response_tokens=spans.response,
        sampled_logprobs=_node_numbers(path, "logprobs"),
        finished=not _is_truncated(trace),
        turns=spans.turns,
        advantage=trace_advantage[0] if trace_advantage else mean_advantage,
        advantages_T=advantages,
        trainer_logprobs=select_numbers(
            annotated_lists.get("trainer_logprobs"), spans.trained_positions
        )
        or _node_numbers(path, "trainer_logprobs"),
        entropies=select_numbers(annotated_lists.get("entropies"), spans.trained_positions)
        or _node_numbers(path, "entropies"),
    )


def _node_numbers(path: list[dict[str, Any]], name: str) -> list[float] | None:
    """The numbers of all sampled tokens; None unless each node has one for each that it sampled."""
    numbers: list[float] = []
    for node in path:
        sampled = sum(map(bool, read_list(node, "mask")))
        values = select_numbers(node.get(name), range(sampled)) if sampled else []
        if values is None or (sampled and len(node[name]) != sampled):
            return None
        numbers += values
    return numbers


def _names(
    episode: dict[str, Any], trace: dict[str, Any], prompt_tokens: list[int]
) -> tuple[str, str, str]:
    """(environment, prompt, group); a prompt without a key is named by its tokens."""
    info, env = read_object(trace, "info"), read_object(episode, "env")
    env_name = str(env.get("name") or env.get("id") or info.get("env_name") or "prime-rl")
    task = read_object(trace, "task") or read_object(episode, "task")
    key = task.get("key") or task.get("hash")
    prompt_id = hash_prompt(str(key)) if key else hash_tokens(prompt_tokens)
    group = read_object(episode, "group").get("id") or info.get("group_id") or prompt_id
    return env_name, prompt_id, str(group)


def _answer(episode: dict[str, Any], trace: dict[str, Any]) -> str:
    data = (read_object(trace, "task") or read_object(episode, "task")).get("data")
    return answer_text(data.get("answer")) if isinstance(data, dict) else ""


def _with_reasoning(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with their reasoning before their contents."""
    return [
        message | {"content": f"{reasoning}\n\n{message.get('content') or ''}"}
        if isinstance(reasoning := message.get("reasoning_content"), str) and reasoning
        else message
        for message in messages
    ]


def _is_truncated(trace: dict[str, Any]) -> bool:
    if trace.get("stop_condition") in TRUNCATING_STOPS:
        return True
    calls = [call for call in read_list(trace, "calls") if isinstance(call, dict)]
    last_finished_call = next((call for call in reversed(calls) if call.get("error") is None), {})
    return bool(last_finished_call.get("finish_reason") == "length")
