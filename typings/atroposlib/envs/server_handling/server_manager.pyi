from typing import Any

from pydantic import BaseModel

class ServerManagerConfig(BaseModel):
    slurm: bool
    testing: bool
    max_n_completions: int
    proxy_url: str | None

class ServerManager:
    servers: list[Any]
    async def update_weight(self, weight: float) -> None: ...
