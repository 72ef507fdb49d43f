"""The models of the coverage benchmark: a file per kind, all of them in `MODELS`."""

from tests.benchmarks.coverage_models import (
    applications,
    convolutions,
    dtypes,
    graphs,
    hub,
    optimizers,
    own_steps,
    preprocessing,
    recommenders,
    recurrent,
    structures,
    transformers,
)
from tests.benchmarks.coverage_models.registry import MODELS, Entry, NotInstalledError

__all__ = [
    "MODELS",
    "Entry",
    "NotInstalledError",
    "applications",
    "convolutions",
    "dtypes",
    "graphs",
    "hub",
    "optimizers",
    "own_steps",
    "preprocessing",
    "recommenders",
    "recurrent",
    "structures",
    "transformers",
]
