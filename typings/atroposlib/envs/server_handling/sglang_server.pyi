from typing import Any

AutoTokenizer: Any
