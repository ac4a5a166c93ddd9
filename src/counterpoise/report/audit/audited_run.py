"""A run under audit: its files, and one pass over plans and rollouts that all findings share."""

from __future__ import annotations

from functools import cached_property

from counterpoise.report.audit.plan_scan import PlanScan, scan_plans
from counterpoise.report.audit.rollout_scan import RolloutScan, scan_rollouts
from counterpoise.report.audit.run_files import RunFiles


class AuditRun(RunFiles):
    """What a finding is given.

    Example:
        run = AuditRun.read(Path("out/demo"))
        run.rollouts.prompts         tallies of all prompts; reads every rollout the first time
    """

    @cached_property
    def plans(self) -> PlanScan:
        return scan_plans(self)

    @cached_property
    def rollouts(self) -> RolloutScan:
        return scan_rollouts(self)
