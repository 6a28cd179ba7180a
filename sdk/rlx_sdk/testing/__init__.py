"""The contract tests of plugins, for the tests of a package that publishes one. That of rewards needs no torch.

For example::

    from rlx_sdk.testing import check_reward
    from my_package import my_reward

    def test_contract():
        check_reward(my_reward)
"""

from rlx_sdk.testing.algorithms import check_algorithm
from rlx_sdk.testing.rewards import check_reward
from rlx_sdk.testing.rollouts import check_rollout

__all__ = ["check_algorithm", "check_reward", "check_rollout"]
