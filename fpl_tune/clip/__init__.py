"""The frozen CLIP towers: `load_towers(name)` returns `Towers`, which encode prompts and images.

May import `data` (the compact CLIP reads the vocabulary of *Shapes*) and `device`. Open `towers.py` first; the fast
text path is `text.py`, `sentences.py`, `blocks.py`, `attention.py`.
"""

from fpl_tune.clip.load import load_towers
from fpl_tune.clip.sentences import Sentences
from fpl_tune.clip.towers import Towers

__all__ = ["Sentences", "Towers", "load_towers"]
