"""A run under audit: its files, and one pass over plans and rollouts that all findings share."""

from __future__ import annotations

from functools import cached_property

from counterpoise.report.audit.plan_scan import PlanTotals, scan_plans
from counterpoise.report.audit.rollout_scan import RolloutTotals, scan_rollouts
from counterpoise.report.audit.run_files import RunFiles


class AuditRun(RunFiles):
    """What a finding is given.

    Example:
        run = AuditRun.read(Path("out/demo"))
        run.rollout_totals.prompts   tallies of all prompts; reads every rollout the first time
    """

    @cached_property
    def plan_totals(self) -> PlanTotals:
        return scan_plans(self)

    @cached_property
    def rollout_totals(self) -> RolloutTotals:
        planned_rows = self.plan_totals.planned_rows if self.has_plans_without_buffer else None
        return scan_rollouts(self, planned_rows)
