"""`reasoning-gym-env audit`: can the verifier of a task be trusted, and its items be made again?

    probes ──> measure (generation and grading workers) ──> findings ──> table, JSON, exit code

Every task is asked what its verifier pays to answers of known worth: the oracle answer in several forms, oracle
answers of other items, constants, enumerations, garbage, near misses. What comes of it is measured on the installed
library, so a new release, or a dataset of one's own, is judged by the same rule.

A search (`search`, of programs from `strategies`) looks for paid answers that nobody thought of.
"""
