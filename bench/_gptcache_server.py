"""GPTCache's own server with its map: run by bench/proxy.py in the environment of the other servers.

Its command line knows no way to run without a model that is fetched from the network; its application does. Its adapter
for OpenAI wants an SDK of years ago, and has no part in /get and /put, which are measured: it is left out.
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
