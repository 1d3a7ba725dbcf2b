"""Names of Atropos and its trainers that are no settings of this environment, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterable

WITHOUT_EFFECT = {
    # Flags of Atropos' commands.
    "max_n_completions": "the first request to a server shows how many completions it returns at once",
    "proxy_url": "requests go directly to the servers under openai",
    # Configs of tinker-atropos.
    "tinker": "only the trainer reads this section; its inference server needs openai.server_type sglang",
    "openai.weight": "the server with the most free places gets the next request; limit a server with "
    "openai.num_max_requests_at_once",
    # Teacher distillation, which other environments inherit.
    "teacher": "this environment has no teacher model",
    "env.teacher_enabled": "this environment has no teacher model",
    "env.teacher_top_k": "this environment has no teacher model",
    # Published configs of other environments.
    "env.start_tok_length": "use env.max_token_length",
    "openai.max_tokens": "use env.max_token_length",
    "openai.temperature": "use env.train_temperature and env.eval_temperature",
    "openai.top_p": "use env.train_top_p",
}
"""Names that published configs and scripts contain, with an explanation for the user. Atropos ignores them silently in
a file. Here they cause a warning instead of an error, so that the file of a trainer also works for the environment.

A name belongs here only if ignoring it sends no request elsewhere: the sections `server` and `server_configs` of some
environments name inference servers, so they stay errors.
"""


def warnings_about(names: Iterable[str]) -> list[str]:
    """A line for each kind of setting (sections and flags, env, openai) that has names without effect."""
    explained: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if name in WITHOUT_EFFECT:
            kind = name.rpartition(".")[0]
            explained.setdefault(kind, []).append(f"{name} ({WITHOUT_EFFECT[name]})")
    return [f"No effect in this environment: {', '.join(texts)}." for texts in explained.values()]
