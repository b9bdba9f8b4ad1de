"""The cache inside other libraries: SDKs of OpenAI and Anthropic, LangChain, LiteLLM."""
