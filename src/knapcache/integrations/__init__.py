"""The cache inside other libraries: the SDKs of OpenAI and Anthropic, LangChain, LiteLLM; and a policy for vLLM."""
