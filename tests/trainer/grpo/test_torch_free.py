from __future__ import annotations

import subprocess
import sys

MODULES = ("advantages", "losses", "aggregations", "kl", "correction", "groups", "ratios", "kinds")


def test_options_are_read_without_torch() -> None:
    imports = "; ".join(f"import services.trainer.grpo.{module}" for module in MODULES)
    code = f"import sys; {imports}; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "False"
