"""The default policy: a tournament of simple rules, judged by sampled shadow caches."""
