"""Emitters make the policies of a generation (ask) and learn from their evaluation (tell)."""

from understudy.qd.emitters.base import Emitter
from understudy.qd.emitters.combined import CombinedEmitter
from understudy.qd.emitters.iso_line import IsoLine
from understudy.qd.emitters.policy_gradient import PolicyGradient

__all__ = ["CombinedEmitter", "Emitter", "IsoLine", "PolicyGradient"]
