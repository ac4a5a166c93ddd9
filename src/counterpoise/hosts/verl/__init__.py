"""verl's trainer with planned batches, as a plug-in of the entry-point group `verl.plugins`.

    python -m verl.trainer.main_ppo ... +poise.composer=grouped +poise.tau=0.25 \\
        algorithm.adv_estimator=poise_grpo

Rollout, rewards, the loss and the workers stay verl's; without our options, so does all the rest.
Credit, balance and plan are ours: which rollouts share an optimizer step.

    plugin.py      what verl loads              host.py        verl's version and signatures
    hook.py        act after an import          queue.py       a batch's content in TransferQueue
    options.py     `+poise.*`, checked          trainer.py     the overridden methods
    row_layout.py  a plan over ranks            sampler.py     RB as verl's custom sampler
    row_keys.py    the group of a row           ledger.py      RB's bookkeeping, without verl
    credit.py      advantage estimators         checkpoint.py  RB's waiting rollouts, saved
    monitor.py     how the update moved tokens  recorder.py    a folder for `poise report`
    batch_rows.py  a batch as rows with their rollouts

    weight_methods.py      which token weights run    token_weights.py  the driver applies them
    weight_request.py      what they read             token_states.py   hidden states, in workers
    trajectory_weights.py  DFPO, in the workers       head_capture.py   the output layer under FSDP
    step_coupling.py       pushes of a step, in the workers

    run.py, command.py, run_options.py, reward.py    `poise train --engine verl`
    importer.py                                      `poise import` of verl's files
"""
