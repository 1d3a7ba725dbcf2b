"""The demo of `make demo`: the whole training loop on one machine, with a tiny real model that learns.

run-api (atroposlib's own) <── batches ── learner (in the demo's process: model, trainer, inference server)
    ^ scored groups                           │ completions
environment (`serve`, a separate process) <───┘

Run `.venv/bin/python -m examples.demo` in the root of a checkout; `--help` lists the options.
"""
