import sys

from .door import main

sys.exit(main())
