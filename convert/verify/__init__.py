"""Whether two files are the same function: computed by the libraries that they are of, and by ours.

Our network, with A's weights, is what everything is compared with: A in its own library, B in its own, tensors bit for
bit, and both files after their way to ours and back. Frameworks are imported inside functions; without torch tensors
are compared, and the report says so.
"""

from .checks import Check, Reference
from .command import certify, command, moved
from .comparison import verify
from .report import Report
from .weights import Weights

__all__ = ["Check", "Reference", "Report", "Weights", "certify", "command", "moved", "verify"]
