"""Write the Makefile that megatron-core's wheel lacks: its training loop calls `make` for helpers already compiled.

python megatron_makefile.py SITE_PACKAGES
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    (Path(sys.argv[1]) / "megatron" / "core" / "datasets" / "Makefile").write_text("all:\n")
