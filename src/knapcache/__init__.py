"""knapcache: an LLM response cache that learns what is worth keeping."""
