"""`reasoning-gym-env demo`: the whole loop on one machine, with everything real but the model.

run-api (atroposlib's own) <── batches ── trainer loop (here)
    ^ scored groups
environment (`serve`, a process of its own) ── prompts ──> mock inference server + simulated student (here)
"""

from .main import main

__all__ = ["main"]
