"""A cached function. Arguments and results must be JSON values; the cost of a call is the time it takes.

python examples/plain_function.py
"""

from __future__ import annotations

import time

from knapcache import Cache


def main() -> None:
    """Call a slow function twice; the second result comes from the cache."""
    with Cache("64MB", cost="seconds") as cache:

        @cache.cached
        def summary(text: str, words: int = 3) -> dict[str, str]:
            time.sleep(0.2)
            return {"summary": " ".join(text.split()[:words])}

        for _ in range(2):
            print(summary("A knapsack holds what is worth carrying", words=4)["summary"])
        stats = cache.stats()
        print(f"{stats.hits} of {stats.requests} from the cache, {stats.seconds_saved:.1f} seconds saved")


if __name__ == "__main__":
    main()
