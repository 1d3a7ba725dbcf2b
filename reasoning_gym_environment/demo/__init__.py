"""`reasoning-gym-env demo`: the whole loop on one machine, with everything real but the model.

run-api (atroposlib's own) <── batches ── trainer loop (main)
    ^ scored groups
environment (`serve`, a process of its own) ── prompts ──> inference_server + student (main)

The environment also tells the demo what it does, as events; `main` counts and shows them.
"""
