"""The credit of replayed rows: the trainer's own where it is stored, unless --set asks for another.

    credit.name, credit.mixture         advantages, and the token weights on them, are computed anew
    update.kl_in                        the same; a KL in the rewards is that of the replayed model
    update.kl, update.kl_estimator      the same if update.kl_in=reward
    credit.weights, credit.settings     token weights are computed anew; advantages stay
    update.mask_truncated=false         truncated responses that the run had masked get their credit
    update.mask_truncated=true          truncated responses lose theirs

Token weights are also computed where the run had some and its tokens/ is not stored. Which rows
share an optimizer step stays as it was stored. As in training, credit is computed over
whole groups, also those of which reward balance dropped rows; what is left is then re-centred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterpoise.batch.recentre import recentre
from counterpoise.config import BalanceConfig, RunConfig
from counterpoise.credit.assign import assign_advantages, assign_weights, mask_if_truncated
from counterpoise.credit.reward_mixtures import configured_mixture
from counterpoise.credit.view import PolicyReader
from counterpoise.lab.replay.source import StoredBatch, StoredRollouts
from counterpoise.types import Group, Row, rows_by_group
from counterpoise.update.kl_penalty import NO_PENALTIES, RewardPenalties

ADVANTAGE_OPTIONS = {"credit.name", "credit.mixture", "update.kl_in"}
# With update.kl_in=reward these change the rewards.
REWARD_KL_OPTIONS = {"update.kl", "update.kl_estimator"}
WEIGHT_OPTIONS = {"credit.weights", "credit.settings"}
MASK_OPTION = "update.mask_truncated"


@dataclass(frozen=True, slots=True)
class CreditChanges:
    """Which stored credit a replay replaces."""

    advantages: bool = False  # and with them the weights
    weights: bool = False
    unmasks: bool = False  # truncated responses that the run left without an advantage
    recentres: bool = False  # whether the run re-centred groups of which it dropped rows

    @classmethod
    def from_options(
        cls, set_options: set[str], config: RunConfig, stored_balance: Mapping[str, Any]
    ) -> CreditChanges:
        """`set_options` are those that the user set, `stored_balance` those of the run's RB."""
        defaults = BalanceConfig()
        balances = bool(stored_balance.get("tau", defaults.tau))
        unit = stored_balance.get("unit", defaults.unit)
        sign = stored_balance.get("sign", defaults.sign)
        advantage_options = ADVANTAGE_OPTIONS
        if config.update.kl_in_reward:
            advantage_options = ADVANTAGE_OPTIONS | REWARD_KL_OPTIONS
        return cls(
            advantages=bool(set_options & advantage_options),
            weights=bool(set_options & WEIGHT_OPTIONS),
            unmasks=MASK_OPTION in set_options and not config.update.mask_truncated,
            recentres=balances and unit != "group" and sign == "advantage",
        )


def credit_groups(
    stored: StoredRollouts,
    config: RunConfig,
    reader: PolicyReader,
    changes: CreditChanges,
    penalties: RewardPenalties = NO_PENALTIES,
) -> list[list[Row]]:
    """Rows of every group, with the advantages in their lines, else computed from the rewards."""
    credited = _assign_advantages(stored.groups, config, penalties)
    if stored.batch is not None or stored.made_no_update:
        # The batch has its own advantages; these rows only serve to count those without signal.
        return credited
    advantages = {} if changes.advantages else stored.advantages
    if all(row.name in advantages for rows in credited for row in rows):
        credited = [
            [row if row.masked else replace(row, advantage=advantages[row.name]) for row in rows]
            for rows in credited
        ]
    return assign_weights(credited, config.credit.weights, config.credit.settings, reader)


def credit_batch(
    batch: StoredBatch,
    groups: Sequence[Group],
    config: RunConfig,
    reader: PolicyReader,
    changes: CreditChanges,
    penalties: RewardPenalties = NO_PENALTIES,
) -> list[Row]:
    """The rows of a stored batch; `groups` are those of its iteration."""
    rows = batch.rows
    if not batch.has_token_weights and config.credit.weights != "uniform":
        changes = replace(changes, weights=True)
    unmasked_names = {
        row.name
        for row in rows
        if changes.unmasks and not row.advantage and (row.masked or row.content.finished is False)
    }
    if changes.advantages or changes.weights or unmasked_names:
        whole_groups = assign_weights(
            _assign_advantages([*groups, *batch.earlier_groups], config, penalties),
            config.credit.weights,
            config.credit.settings,
            reader,
        )
        rows = _replace_credit(rows, whole_groups, changes, unmasked_names)
    # A plan stores the length of every response, masked or not.
    return [mask_if_truncated(row) for row in rows] if config.update.mask_truncated else rows


def _replace_credit(
    rows: Sequence[Row],
    whole_groups: Sequence[Sequence[Row]],
    changes: CreditChanges,
    unmasked_names: set[tuple[str, int]],
) -> list[Row]:
    """The rows with the credit that `whole_groups` have, as far as it changes."""
    credited_rows = {row.name: row for group_rows in whole_groups for row in group_rows}
    replaced_rows = []
    for row in rows:
        credited = credited_rows[row.name]
        if row.name in unmasked_names or (changes.advantages and not row.masked):
            replaced_rows.append(
                replace(
                    row,
                    advantage=credited.advantage,
                    weights_T=credited.weights_T,
                    masked=credited.masked,
                )
            )
        else:
            weights_T = credited.weights_T if changes.weights else row.weights_T
            replaced_rows.append(replace(row, weights_T=weights_T))
    if changes.advantages and changes.recentres:
        return _recentre_trimmed_groups(replaced_rows, whole_groups)
    return replaced_rows


def _assign_advantages(
    groups: Sequence[Group], config: RunConfig, penalties: RewardPenalties
) -> list[list[Row]]:
    return assign_advantages(
        groups,
        config.credit.name,
        configured_mixture(config),
        penalties=penalties.by_group,
        mask_truncated=config.update.mask_truncated,
    )


def _recentre_trimmed_groups(
    rows: Sequence[Row], whole_groups: Sequence[Sequence[Row]]
) -> list[Row]:
    """Re-centre the groups that have fewer rows with signal here than they have as a whole."""
    whole_sizes = Counter(
        row.group for group_rows in whole_groups for row in group_rows if row.sign
    )
    recentred_rows = list(rows)
    for group, indices in rows_by_group(rows).items():
        with_signal = [i for i in indices if rows[i].sign]
        if len(with_signal) < whole_sizes[group]:
            for i, row in zip(with_signal, recentre([rows[i] for i in with_signal]), strict=True):
                recentred_rows[i] = row
    return recentred_rows
