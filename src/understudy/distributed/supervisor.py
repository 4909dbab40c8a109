"""The supervisor of the collectors: gives orders, takes in deliveries, replaces who is lost.

Every delivery names its place, the life of the collector there and the number of the order. Only
the one that is expected next is taken; all else is late, or a double, and is left aside. So
nothing is counted twice, whatever the network does.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, final

from understudy.distributed.collectors import Delivery, Order
from understudy.errors import ClusterError

MOST_FRUITLESS = 5  # collectors of one place that may die one after the other without a delivery
SECONDS_TO_WAIT = 0.5  # for a delivery, before looking at the clock and at signals
SECONDS_TO_START = 120.0  # a process, Ray's and ours, on a busy machine, and what it compiles

_log = logging.getLogger("understudy.distributed")


@final
class Post:
    """A place among the collectors, and who holds it now."""

    def __init__(self, place: int, life: int, actor: Any):
        self.place = place
        self.fruitless = 0  # of its latest holders
        self.torn = False  # the next delivery does not go on where the last one taken ended
        self.hold(life, actor)

    def hold(self, life: int, actor: Any) -> None:
        self.life, self.actor = life, actor
        self.orders: dict[Any, Order] = {}  # by the reference to their delivery
        self.ordered = self.expected = 0  # numbers of orders
        self.heard, self.delivered = time.monotonic(), False

    @property
    def silent_for(self) -> float:
        return time.monotonic() - self.heard if self.orders else 0.0


@final
class Supervisor:
    """Of collectors on Ray. `hire(place, life)` starts one."""

    def __init__(
        self, ray: Any, hire: Callable[[int, int], Any], lives: list[int], patience: float
    ):
        self._ray, self._hire, self._patience = ray, hire, patience
        self.posts = [Post(place, life, hire(place, life)) for place, life in enumerate(lives)]
        self.replaced = self.ignored = self.lost = 0
        self._given_up = False

    @property
    def alive(self) -> int:
        """Those who have delivered since they began."""
        return sum(post.delivered for post in self.posts)

    def order(self, post: Post, policy: Any, version: int, iterations: int, random: bool) -> None:
        """Have a collector take steps by a policy (a reference to one)."""
        order = Order(post.ordered, version, iterations, random)
        post.ordered += 1
        if not post.orders:  # it was idle, not silent
            post.heard = time.monotonic()
        post.orders[post.actor.collect.remote(policy, order)] = order

    def ordered(self) -> int:
        """Iterations that are on their way."""
        if self._given_up:
            return 0
        return sum(order.iterations for post in self.posts for order in post.orders.values())

    def deliveries(self) -> list[Delivery]:
        """What has come, place by place; waits a moment for the first. Whose work was lost holds
        no orders afterwards."""
        waiting = {ref: post for post in self.posts for ref in post.orders}
        if not waiting:
            return []
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=SECONDS_TO_WAIT)
        if ready:
            ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        arrived = []
        # In the order in which they were asked for: a later one cannot be expected first.
        for ref, post in waiting.items():
            if ref in ready and ref in post.orders:  # not so if it was replaced a moment ago
                arrived += self._take(post, ref)
        self._look_after()
        return arrived

    def _take(self, post: Post, ref: Any) -> list[Delivery]:
        """The delivery, if it is the one expected."""
        errors = self._ray.exceptions
        lost = (errors.ObjectLostError, errors.ObjectStoreFullError, errors.RaySystemError)
        try:
            delivery = self._ray.get(ref)
        except errors.RayActorError as error:
            self.replace(post, f"was lost ({type(error).__name__})")
            return []
        except errors.RayTaskError as error:
            if isinstance(error.cause, lost):  # it could not put its steps where we could see them
                return self._lose(post, ref, error.cause)
            raise error.cause from error
        except lost as error:
            return self._lose(post, ref, error)
        post.orders.pop(ref)
        if not self.expects(post, delivery):
            return []
        torn, post.torn = post.torn, False
        return [delivery._replace(torn=torn)]

    def _lose(self, post: Post, ref: Any, why: Exception) -> list[Delivery]:
        """The steps were taken, but nobody will ever see them: others are taken instead."""
        post.orders.pop(ref)
        post.expected, post.torn, post.heard = post.expected + 1, True, time.monotonic()
        self.lost += 1
        _log.warning("a delivery of collector %d was lost: %s", post.place, why)
        return []

    def expects(self, post: Post, delivery: Delivery) -> bool:
        """Whether this is the next delivery of who holds the post now. If so, it is taken."""
        if (delivery.life, delivery.order.number) != (post.life, post.expected):
            self.ignored += 1
            return False
        post.expected += 1
        post.fruitless, post.delivered, post.heard = 0, True, time.monotonic()
        return True

    def replace(self, post: Post, why: str) -> None:
        """Another collector takes the place. It is sent the present policy with its first order."""
        post.fruitless += 1
        if post.fruitless >= MOST_FRUITLESS:
            self._given_up = True
            raise ClusterError(
                f"collector {post.place} was replaced {post.fruitless} times without delivering a "
                f"single step, the last time because it {why}"
            )
        _log.warning("collector %d %s: it is replaced", post.place, why)
        self._ray.kill(post.actor)
        self.replaced += 1
        post.hold(post.life + 1, self._hire(post.place, post.life + 1))
        post.torn = True

    def _look_after(self) -> None:
        """Replace who is silent for too long; give up when everyone is."""
        silent = [post for post in self.posts if post.silent_for > self._allowed(post)]
        if silent and len(silent) == len(self.posts):
            self._given_up = True
            cores = self._ray.cluster_resources().get("CPU", 0)
            raise ClusterError(
                f"no collector has delivered anything for {min(p.silent_for for p in silent):.0f} "
                f"s ({len(self.posts)} were asked for, {self.replaced} were replaced; the cluster "
                f"has {cores:g} cores)"
            )
        for post in silent:
            self.replace(post, f"was silent for {post.silent_for:.0f} s")

    def _allowed(self, post: Post) -> float:
        """Seconds of silence."""
        return self._patience if post.delivered else max(self._patience, SECONDS_TO_START)

    def put_back(self, kept: list[Any]) -> None:
        """Let everyone go on from what they had said of themselves; from nothing, anew."""
        told = [
            post.actor.put_back.remote(one)
            for post, one in zip(self.posts, kept, strict=True)
            if one
        ]
        self._ray.get(told)

    def ask(self, method: str) -> list[Any]:
        """Everyone's answer to the same question, None from those who are lost."""
        errors, answers = self._ray.exceptions, []
        if self._given_up:
            return [None] * len(self.posts)
        asked = [getattr(post.actor, method).remote() for post in self.posts]
        for post, ref in zip(self.posts, asked, strict=True):
            try:
                answers.append(self._ray.get(ref, timeout=self._allowed(post)))
            except (errors.RayActorError, errors.GetTimeoutError) as error:
                self.replace(post, f"did not answer ({type(error).__name__})")
                answers.append(None)
        return answers

    def rested(self) -> None:
        """Time that the learner has spent otherwise is nobody's silence."""
        for post in self.posts:
            post.heard = time.monotonic()

    def close(self) -> None:
        for post in self.posts:
            self._ray.kill(post.actor)
