"""All experiments by name. The names are a public contract: scripts and result files use them."""

from __future__ import annotations

from typing import Any

from knapcache_experiments import (
    alpha,
    approximate,
    cluster,
    confidence,
    drift,
    errata,
    figure_1,
    figure_2,
    gaps,
    live,
    long_run,
    one_hits,
    scaling,
    table_2,
)
from knapcache_experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment[Any]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        figure_1,
        table_2,
        figure_2,
        errata,
        confidence,
        alpha,
        long_run,
        gaps,
        scaling,
        drift,
        one_hits,
        approximate,
        live,
        cluster,
    )
}
