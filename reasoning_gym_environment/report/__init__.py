"""`reasoning-gym-env report`: evaluation results and dumps as one HTML page that needs no network.

    files ── load ──> sources ── comparison, if asked for ──> page ── templates ──> report.html

Everything in the files is hostile, above all what a model wrote: the page shows it as text, and its content security
policy lets no script run but the one whose hash it names.
"""
