from typing import Literal

from pydantic import BaseModel

class ServerBaseline(BaseModel):
    timeout: int = 1200
    num_max_requests_at_once: int = 512
    num_requests_for_eval: int = 64
    model_name: str = "default"
    rolling_buffer_length: int = 1000
    server_type: Literal["openai", "trl", "sglang", "vllm"] = "openai"
    tokenizer_name: str = "none"

class APIServerConfig(ServerBaseline):
    api_key: str | None = ""
    base_url: str | None = ""
    n_kwarg_is_ignored: bool = False
    health_check: bool = True
