"""Policies and bounds that read the whole trace. No cache can run them; they are reference points."""
