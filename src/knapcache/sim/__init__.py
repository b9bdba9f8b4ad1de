"""The lab: requests made or read, policies replayed over them, regret and bounds."""
