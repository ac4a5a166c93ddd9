"""One run file, three engines: `poise train X.toml --engine native|trl|verl`.

    native   one process, one device: `loop.py`
    trl      the same run through TRL's GRPO trainer, so that Accelerate spreads it
    verl     the same run as one verl command, for a Ray cluster

An engine either honours an option or names it and stops: nothing is ignored.

    translate.py    what an engine can say of an option; the check
    trl.py          the table for TRL, and its arguments     trl_run.py       a run through TRL
    trl_trainer.py  prompts, seeds and stops of a run        trl_record.py    its run folder
    verl.py         the table for verl, and its command
"""
