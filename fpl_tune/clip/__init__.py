"""The frozen towers: `load_towers(name)` gives `Towers`, which turn prompts and images into features."""

from fpl_tune.clip.load import load_towers
from fpl_tune.clip.sentences import Sentences
from fpl_tune.clip.towers import Towers

__all__ = ["Sentences", "Towers", "load_towers"]
