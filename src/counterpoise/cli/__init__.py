"""The `poise` command: a file for each subcommand, listed here in the order of --help.

Heavy imports wait until a command needs them, so --help is instant.
"""

from __future__ import annotations

import sys

from counterpoise.cli import (
    bench,
    contamination,
    credit,
    demo,
    doctor,
    evaluate,
    experiment,
    import_rollouts,
    look,
    options,
    plan,
    report,
    study,
    train,
    verify_check,
    warmup,
)
from counterpoise.cli.app import app
from counterpoise.errors import PoiseError

app.command()(demo.demo)
app.command()(train.train)
app.command()(warmup.warmup)
app.command()(plan.plan)
app.command()(report.report)
app.command("import")(import_rollouts.import_rollouts)
app.command()(study.study)
app.command()(experiment.experiment)
app.command("eval")(evaluate.evaluate)
app.command()(look.look)
app.command()(credit.credit)
app.command()(options.options)
app.command()(contamination.contamination)
app.command("verify-check")(verify_check.verify_check)
app.command()(bench.bench)
app.command()(doctor.doctor)


def main() -> None:
    """Run the command; a fault of the user's is one line and exit code 2."""
    try:
        app()
    except PoiseError as fault:
        print(f"poise: {fault}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("poise: stopped; a run can be resumed with --resume", file=sys.stderr)
        sys.exit(130)
