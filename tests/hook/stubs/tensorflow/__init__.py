"""Stands for TensorFlow: its eager context."""
from .python.eager import context
