"""Whether two files are the same function: computed by the libraries that they are of, and by ours.

Our network, with A's weights, is what everything is compared with: A in its own library, B in its own, tensors bit for
bit, and both files after being read to ours and written again. Where no library builds a file's network independently
of our table, the verdict claims no more than that the tensors are the same. Frameworks are imported inside functions.
"""

from .checks import Check
from .command import certify, command, compare_plan, describe_adaptation
from .comparison import verify
from .reference import Reference
from .report import Report
from .weights import Weights

__all__ = [
    "Check",
    "Reference",
    "Report",
    "Weights",
    "certify",
    "command",
    "compare_plan",
    "describe_adaptation",
    "verify",
]
