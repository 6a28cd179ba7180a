"""Runs the tests that make faults and counts: tried, survived as promised, steps made again, not as promised.

    python tests/faults/count.py [pytest's arguments, such as -n 14 --dist load]

All of them, the long ones too; a table in markdown comes last. A number that differs fails its test.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path(__file__).parents[1]


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = subprocess.run([sys.executable, "-m", "pytest", "-m", "fault", "-o", "junit_family=xunit1",
                               f"--junitxml={report}", str(TESTS),
                               *arguments], check=False).returncode
        hit = Counter[str]()
        counted: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for case in ElementTree.parse(report).iter("testcase"):
            said = {found.get("name"): found.get("value") or "" for found in case.iter("property")}
            skipped, failed = case.find("skipped") is not None, len(case.findall("failure") + case.findall("error"))
            if "fault" in said and not skipped:
                tried, lost = int(said["tried"]), int(said["lost"])
                new = (tried, 0 if failed else tried, 0 if failed else lost, failed)
                counted[said["fault"]] = [sum(pair) for pair in zip(counted[said["fault"]], new, strict=True)]
                hit.update(json.loads(said.get("hit", "{}")))
    print("| fault | tried | survived | steps made again | not as promised |\n|---|---|---|---|---|")
    for name, row in sorted(counted.items()):
        print(f"| {name} | {' | '.join(map(str, row))} |")
    total = [sum(column) for column in zip(*counted.values(), strict=True)] if counted else [0] * 4
    print(f"| **all** | {' | '.join(map(str, total))} |")
    print("\nProcesses were killed in: " + ", ".join(f"{where} {times}" for where, times in sorted(hit.items())))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
