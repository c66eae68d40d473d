"""Stands for JAX: the backends its bridge holds once a device was used."""
from ._src import xla_bridge
