"""verl's trainer with batches made on purpose, by the entry-point group `verl.plugins`.

    python -m verl.trainer.main_ppo ... +poise.composer=grouped +poise.tau=0.25 \\
        algorithm.adv_estimator=poise_grpo

Rollout, rewards, the loss and the workers stay verl's, and without our options so does everything.
Ours are the credit, the balance and the plan: which rollouts share an optimizer step.

    plugin.py   what verl loads          host.py     the version and signatures it rests on
    hook.py     after an import          queue.py    what TransferQueue holds of a batch
    options.py  `+poise.*`, checked      trainer.py  what is overridden
    row_layout.py   a plan over ranks        sampler.py  RB as verl's custom sampler
    credit.py   advantage estimators     ledger.py   RB's books, without verl
    monitor.py  where the tokens went
"""
