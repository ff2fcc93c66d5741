"""The oracle: what is wrong with a run that has ended."""

from __future__ import annotations

from tests.faults_runs.audit import audit
from tests.faults_runs.replay import replay
from tests.faults_runs.site import DrivenRun, Site


async def find_wrong(site: Site, run: DrivenRun) -> list[str]:
    config = run.config
    await run.read()
    found = audit(
        run.rows,
        run.name,
        lambda digest: (run.folder / "payloads" / digest).read_bytes(),
        config.run.groups_per_step,
        config.run.max_lag,
    )
    wrong = [*found.wrong, *replay(config, found)]
    if (code := site.exit_code(run)) != 0:
        wrong.append(f"the run ended with exit code {code}")
    if len(found.steps) != config.run.steps:
        wrong.append(f"{len(found.steps)} steps of {config.run.steps} were trained")
    if found.open_groups:
        wrong.append(f"groups that never ended: {found.open_groups}")
    return wrong
