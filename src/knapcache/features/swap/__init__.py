"""Swap: a cheaper model answers where labels of this traffic prove that it loses little."""
