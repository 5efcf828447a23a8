"""A topology as a stream on Spark whose Python workers, executors and driver get ``kill -9``.

``python -m tests.torture.topology_kills --kills 20`` kills 20 processes at random moments, and checks at the end that
each line was acked or became a dead letter, and that the state is a plain count of the acked ones. ``--seed N`` repeats
the choice of victims and moments. Linux only: it finds the processes in ``/proc``.
"""

from tests.torture.topology_kills.account import Account, AccountError, check
from tests.torture.topology_kills.run import Program

__all__ = ["Account", "AccountError", "Program", "check"]
