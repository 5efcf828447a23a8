"""A streaming acker on Spark whose workers, executors and driver get ``kill -9`` at random points.

``python -m tests.torture.kills --kills 20`` kills 20 processes and prints the seed of a run that broke a promise;
``--seed N`` repeats that run. Linux only: it finds the processes in ``/proc``.
"""

from tests.torture.kills.plan import CLUSTER, LOCAL, Kill, Plan, Victim, plan_of
from tests.torture.kills.run import KillsError, Survived, survive

__all__ = ["CLUSTER", "LOCAL", "Kill", "KillsError", "Plan", "Survived", "Victim", "plan_of", "survive"]
