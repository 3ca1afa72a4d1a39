"""Expert routing of mixture-of-experts models, from an inference engine to a Gatescope collector and back.

`Agent` captures, `Client` asks; `gatescope.vllm` and `gatescope.sglang` connect engines.
"""

from gatescope._agent import Agent, __version__
from gatescope.client import Client, QueryError

__all__ = ["Agent", "Client", "QueryError", "__version__"]
