"""`reasoning-gym-env report`: evaluation results and dumps as one HTML page that needs no network.

    files ── load ──> sources ── comparison, on request ──> page ── templates ──> report.html

All content of the files is untrusted, above all the text of a model. The page shows this content as text. Its content
security policy contains the hash of our script, and the browser runs no other script.
"""
