"""Which backbones there are: name -> class. A new one is a new file and a line here."""

from __future__ import annotations

from learn2branch.backbones.bgnn import BipartiteGNN
from learn2branch.backbones.dual_attention import DualAttention

BACKBONES: dict[str, type[DualAttention] | type[BipartiteGNN]] = {
    "dualattn": DualAttention,
    "bgnn": BipartiteGNN,
}
