"""The cache inside other libraries: the SDKs of OpenAI and Anthropic, LangChain, LiteLLM."""
