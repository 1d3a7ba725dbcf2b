"""`reasoning-gym-env demo`: the whole loop on one machine, with a tiny real model that learns.

run-api (atroposlib's own) <── batches ── learner (in main's process: model, trainer, inference server)
    ^ scored groups                           │ completions
environment (`serve`, a process of its own) <─┘
"""
