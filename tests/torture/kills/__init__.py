"""A streaming acker on Spark under ``kill -9``: of its Python workers, of executors, of the driver, at random points.

``python -m tests.torture.kills --kills 20`` kills so many, and tells the seed of a run that broke a promise;
``--seed N`` runs that one again. Linux only: it finds out in ``/proc`` whom to kill.
"""

from tests.torture.kills.plan import CLUSTER, LOCAL, Kill, Plan, Victim, plan_of
from tests.torture.kills.run import KillsError, Survived, survive

__all__ = ["CLUSTER", "LOCAL", "Kill", "KillsError", "Plan", "Survived", "Victim", "plan_of", "survive"]
