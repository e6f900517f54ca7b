"""Which backbones there are: name -> class.

A new one is a new file and a line here; to be exported, also its form for one graph in
`scripted.py`.
"""

from __future__ import annotations

from learn2branch.backbones.bgnn import BipartiteGNN
from learn2branch.backbones.dual_attention import DualAttention

BACKBONES: dict[str, type[DualAttention] | type[BipartiteGNN]] = {
    "dualattn": DualAttention,
    "bgnn": BipartiteGNN,
}
