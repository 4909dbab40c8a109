"""What new policies come from. An emitter is asked for policies and told when they were
evaluated."""

from understudy.qd.emitters.base import Emitter
from understudy.qd.emitters.combined import CombinedEmitter
from understudy.qd.emitters.iso_line import IsoLine
from understudy.qd.emitters.policy_gradient import PolicyGradient

__all__ = ["CombinedEmitter", "Emitter", "IsoLine", "PolicyGradient"]
