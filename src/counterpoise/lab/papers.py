"""What of each paper is here: one line for every algorithm, equation, figure, table and claim.

    what | where it is here | how it agrees with an independent reference | what is not there

Where it is: options of a run (`section.option=value`), or a command. Which engines honour options
is read from their own tables (hosts/*/run_options.py); commands work on the native engine. A brace
{native, TRL} says otherwise. How it agrees:

    1e-10 @microscope/test_coupling.py     the tolerance at which that test compares it with a
                                           literal sum, a closed form or autograd
    claim 3                                the verdicts of docs/data/claims.csv, on both models
    a phrase                               anything else

`docs/generate.py` writes docs/reference/papers.md from these tables; tests/lab/test_papers.py
checks that options, commands, tests and claims exist.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from counterpoise.config.load import load_config
from counterpoise.hosts.translate_options import list_refusals
from counterpoise.hosts.trl.run_options import OPTIONS as TRL_OPTIONS
from counterpoise.hosts.verl.run_options import OPTIONS as VERL_OPTIONS

NOT_RUN = "not run"

CANCELLATION = """
eq. 1, group advantage | credit.name=grpo | 1e-14 @credit/test_advantages.py |
eq. 2, surrogate | update.surrogate=reinforce | 1e-12 @update/test_surrogates.py |
eq. 3-5, coupling to first order | poise study coupling | 1e-6 @microscope/test_parameter_kernel.py |
eq. 6-9, output-layer proxy | monitor.every=1 {native, TRL} | 1e-10 @microscope/test_coupling.py |
eq. 10, two cases of phi | poise study coupling | 1e-12 @microscope/test_pairs.py | the printed case lacks 36 to 39 % of phi
eq. 11-13, variance and filter | poise study variance | 5e-6 @microscope/test_variance.py | the paper's steps: derived anew
eq. 14, cross term | poise plan | exact @batch/test_describe.py |
eq. 20, token value | poise study value | 1e-9 @microscope/test_value.py |
App. B, objective | update.surrogate=grpo, update.aggregate=token_mean | 1e-4 @update/test_gradient.py |
App. D.3, Adam's first step | update.optimizer=sgd | 1e-6 @update/test_optimizer.py |
Alg. 1, displacement | monitor.every=1 | exact @microscope/test_displacement.py |
Alg. 2, polarity | poise study polarity | 0.02 @microscope/test_polarity.py |
query-preserved batches (QB) | batch.composer=grouped | no group split @batch/test_compose.py |
reward-balanced batches (RB) | balance.tau=0.25 | no share missed @batch/test_choose.py | how the paper trims groups
Fig. 1, flipping | poise study flipping | claim 1, claim 2 | 7B models
Fig. 2, who couples | poise study coupling | claim 3 | 7B models
Table 1, Fig. 3, masking | poise study masking | claim 4 | whose tokens are masked
Fig. 4, token classes | poise study polarity | claim 5 | NLTK tags: word lists
Fig. 5, value gap | poise study value | claim 6 | 256 continuations: 32
Fig. 6, sampling budget | poise study budget | claim 7 | 256 continuations
Fig. 7 a, signs apart | batch.composer=by_sign | claim 12 | 7B models
Fig. 7 b, sparse rewards | poise study composition | claim 8 | 256 continuations
Fig. 8, curves of QB and RB | poise study interventions | claim 13 | benchmark curves
Fig. 9, other models | poise study flipping | claim 1, claim 2 | full-batch column
Fig. 10, proxy and full update | poise study proxy | claim 11 | along a run
Fig. 11, repeated updates | poise study repeated | claim 9 | 256 continuations
Table 2, six benchmarks | poise eval | not run | RB on 7B averages 40.5, printed 42.4
Table 3, recipe | poise train qwen2.5-math-7b {native, TRL, verl} | not run |
Table 4, sampling settings | poise eval --sweep | not run |
claim: shared tokens cancel | poise study shared | claim 15, claim 16, claim 17 | SmolLM2
claim: variance falls | poise study variance | claim 10 |
claim: balance is why RB helps | poise experiment smollm2-balance-dose | claim 14 | run
section 5, lazy likelihood | - | - | share of right rollouts that fall
"""
DFPO = """
eq. 2, exchangeability | monitor.every=1 {native, TRL} | 1e-5 @microscope/test_prefixes.py |
Prop. 3.1, learning tax | monitor.every=1 {native, TRL} | 2e-3 @microscope/test_learning_tax.py |
Cor. 3.2, drift between right answers | monitor.every=1 {native, TRL} | 2e-3 @microscope/test_learning_tax.py | kappa
mechanism 1, sequence ratio | update.surrogate=gspo | exact @update/test_surrogates.py |
mechanism 2, clip | update.surrogate=grpo | exact @update/test_surrogates.py |
T1, min-replace | update.trajectory=min_replace, update.surrogate=reinforce | 1e-4 @update/test_trajectory.py |
T2, orthogonal | update.trajectory=orthogonal, update.surrogate=reinforce | 1e-4 @update/test_trajectory.py | clamped form
GRPO-fix | - | - | no definition found
Jitter | - | - | no definition found
steps to score | poise study dfpo | measured | long runs
claim: less tax, drift, collapse | poise study dfpo | measured | paper's models
results (AIME25, HMMT25, LiveCodeBench) | - | not run | all
"""
OAR = """
OAR-P, masked tokens | credit.weights=oar_p | 1e-4 @credit/test_oar_p.py |
OAR-P within a budget | credit.weights=oar_p_approximate | 1e-4 @credit/test_oar_p.py | not the paper's
OAR-G, gradient proxy | credit.weights=oar_g | 2e-3 @credit/test_oar_g.py |
three comparisons of answers | credit.settings=["compare=answer_joint"], credit.weights=oar_g | 2e-3 @credit/test_oar_g.py |
bi-level reshaping | credit.weights=oar_g | 1e-5 @credit/test_bilevel.py | which quantile the paper takes
claim: OAR-P is the upper bound | poise study credit | approximate form: no | exact form
claim: G nearly as good, cheap | poise study credit | finds value; 34 % dearer | training gain
results (GSM8K, MATH) | - | not run | all
"""
GRAIL = """
saliency weights | credit.weights=grail | 1e-4 @credit/test_grail.py |
indexing of the released code | credit.settings=["released_indexing=true"], credit.weights=grail | 1e-4 @credit/test_grail.py |
wrong, right or both | credit.settings=["which=both"], credit.weights=grail | 1e-4 @credit/test_grail.py |
claim: better than GRPO | poise study credit | trains worse, our indexing | released indexing
results (five models, six sets) | - | not run | all
"""
CRPO = """
task and style decoupled | credit.mixture=decoupled, verify.also=["equations"] | 1e-9 @credit/test_reward_mixtures.py | running statistics of roles
generic answers as anchors | sample.anchors=1 | exact @sample/test_anchors.py |
KL by complexity | - | - | update.kl is one number
entropy factor | - | - | all
sequence ratio by token | update.surrogate=gspo | exact @update/test_surrogates.py |
role-play task and rewards | - | - | all
results | - | not run | all
"""
SERL = """
weights of actions | credit.weights=serl, task.environment=tries | 2e-5 @credit/test_serl.py |
immediate feedback | task.environment=tries | exact @task/test_environment.py | other feedback modes
teacher synchronised every 10 | - | - | the current policy teaches
ALFWorld, WebShop | - | - | both
results | - | not run | all
"""
SHEAR = """
span distances | credit.weights=shear | 2e-3 @credit/test_shear.py |
Sinkhorn | credit.weights=shear | 1e-4 @credit/test_point_distances.py |
MMD, Chamfer, cosine | credit.settings=["distance=chamfer"], credit.weights=shear | 2e-3 @credit/test_shear.py |
width and stride | credit.settings=["width=100", "stride=25"], credit.weights=shear | 2e-3 @credit/test_shear.py | default is relative
math | verify.name=math | 7,949 references |
code | task.name=code_problems, verify.name=code | escapes contained @verify/code/test_escapes.py | public sets
claim: better credit | poise study credit | finds value | training gain
results (three models) | - | not run | all
"""
SDPG = """
loss with self-distillation | credit.rule=sdpg | 1e-5 @update/rules/test_sdpg.py |
four regularisers | credit.rule=sdpg, credit.rule_settings=["reg=ufkl"] | 1e-5 @update/rules/test_sdpg.py |
beta schedule | credit.rule=sdpg, credit.rule_settings=["warm=10", "decay=10"] | exact @update/rules/test_sdpg.py |
KL over the vocabulary | credit.rule=sdpg | 1e-5 @model/test_kl.py |
dynamic sampling | sample.refills=2 | exact @sample/test_dynamic_sampling.py |
teacher | credit.rule=sdpg | - | synchronised copies
OPSD baseline | - | - | all
claim: better than GRPO | poise study credit | not shown, 4 seeds |
results (Qwen3-4B) | - | not run | all
"""
RLSD = """
weights by hindsight | credit.weights=rlsd | 2e-5 @credit/test_rlsd.py |
lambda fades | credit.settings=["fade=50"], credit.weights=rlsd | 2e-5 @credit/test_rlsd.py |
teacher synchronised every 10 | - | - | the current policy teaches
multimodal tasks | - | - | all
claim: better than GRPO | poise study credit | not shown, 4 seeds |
results (Qwen3-VL-8B) | - | not run | all
"""

# (name, arXiv id) -> its table
PAPERS: Mapping[tuple[str, str], str] = {
    ("The cancellation hypothesis", "2605.08666"): CANCELLATION,
    ("Design conditions: DFPO", "2604.13088"): DFPO,
    ("OAR", "2601.07408"): OAR,
    ("GRAIL", "2606.04889"): GRAIL,
    ("CRPO", "2605.25511"): CRPO,
    ("SERL", "2605.19447"): SERL,
    ("SHEAR", "2604.23318"): SHEAR,
    ("SDPG", "2606.04036"): SDPG,
    ("RLSD", "2604.03128"): RLSD,
}
OPTION = re.compile(r"(\w+\.\w+)=(\[[^]]*\]|[\w.]+)")
ENGINES = {"TRL": TRL_OPTIONS, "verl": VERL_OPTIONS}


@dataclass(frozen=True, slots=True)
class PaperItem:
    """One line of a paper's table.

    Example:
        PaperItem("span distances", "credit.weights=shear", "", "2e-3", "credit/test_shear.py", "")
    """

    what: str
    here: str  # options, a command, or "-"
    stated_engines: str  # "" if they follow from `here`
    agreement: str
    test: str  # below tests/; "" if no test decides
    lacks: str

    @property
    def options(self) -> dict[str, str]:
        return dict(OPTION.findall(self.here))

    @property
    def claims(self) -> list[int]:
        return [int(number) for number in re.findall(r"claim (\d+)", self.agreement)]

    @property
    def engines(self) -> str:
        """The engines that honour its options, by their own tables."""
        if self.stated_engines or self.here == "-":
            return self.stated_engines or "-"
        if not self.options:
            return "native"
        config = load_config("demo", [f"{name}={value}" for name, value in self.options.items()])
        supporting = [
            engine
            for engine, table in ENGINES.items()
            if not any(
                refusal.startswith(f"{name}=")
                for refusal in list_refusals(config, table)
                for name in self.options
            )
        ]
        return ", ".join(["native", *supporting])


def parse_table(text: str) -> list[PaperItem]:
    """The items of a table of this file."""
    items = []
    for line in text.strip().splitlines():
        what, here, agreement, lacks = (cell.strip() for cell in line.split("|"))
        here, _, engines = here.partition(" {")
        agreement, _, test = (piece.strip() for piece in agreement.partition("@"))
        items.append(PaperItem(what, here, engines.removesuffix("}"), agreement, test, lacks))
    return items


def read_verdicts(claims_file: Path) -> dict[int, list[str]]:
    """The verdicts of each claim, model by model."""
    verdicts: dict[int, list[str]] = {}
    with claims_file.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            verdicts.setdefault(int(record["number"]), []).append(record["verdict"])
    return verdicts


def describe_agreement(item: PaperItem, verdicts: Mapping[int, list[str]]) -> str:
    """Its agreement as a cell; claims become their verdicts, embedded model first."""
    if not item.claims:
        return item.agreement
    return "; ".join(", ".join(dict.fromkeys(verdicts[number])) for number in item.claims)


def papers_lines(claims_file: Path) -> list[str]:
    """The tables as Markdown."""
    verdicts = read_verdicts(claims_file)
    lines = []
    for (name, arxiv_id), text in PAPERS.items():
        lines += [f"## {name}", "", f"[{arxiv_id}](https://arxiv.org/abs/{arxiv_id})", ""]
        lines += ["| | here | engines | agreement | not there |", "|---|---|---|---|---|"]
        for item in parse_table(text):
            here = item.here if item.here == "-" else f"`{item.here}`"
            cells = (item.what, here, item.engines, describe_agreement(item, verdicts), item.lacks)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines
