from paceline.api import POLICIES as POLICIES
from paceline.api import Cluster as Cluster
from paceline.api import Job as Job
from paceline.api import Scenario as Scenario
from paceline.api import plan as plan
from paceline.api import read_run as read_run
from paceline.api import simulate as simulate
from paceline.errors import UserError as UserError

__version__: str
__all__ = ["POLICIES", "Cluster", "Job", "Scenario", "UserError", "plan", "read_run", "simulate"]
