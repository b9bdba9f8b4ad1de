"""GPTCache's own server with its exact-match map, run by bench/proxy.py in the environment of the peers.

GPTCache's command line needs a model from the network; its application does not. Its adapter for OpenAI needs a
years-old SDK and is not used by /get and /put, so it is replaced by an empty module.
"""

import sys
from importlib import import_module
from types import ModuleType

if __name__ == "__main__":
    adapters = import_module("gptcache.adapter")
    adapters.openai = sys.modules["gptcache.adapter.openai"] = ModuleType("openai")  # type: ignore[attr-defined]
    import_module("gptcache").cache.init(
        pre_embedding_func=import_module("gptcache.processor.pre").get_prompt,
        data_manager=import_module("gptcache.manager").get_data_manager(data_path="map", max_size=100_000),
    )
    app = import_module("gptcache_server.server").app
    import_module("uvicorn").run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
