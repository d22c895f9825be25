"""python -m tpu_ui generate | warmup | models | devices | cache | bench"""

import sys

from tpu_ui.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
