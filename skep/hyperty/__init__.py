"""Hyperties in Python: a `Runtime` on a messaging node, a `Reporter` of its own object, an `Observer` of another's."""

from skep.hyperty.observer import ObjectChange, Observer
from skep.hyperty.reporter import Action, Reporter
from skep.hyperty.runtime import Runtime

__all__ = ["Action", "ObjectChange", "Observer", "Reporter", "Runtime"]
