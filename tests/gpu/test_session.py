"""Tests of scripts/gpu-session and scripts/gpu-joins on the emulated device.

OVERSPILL_PROGRAMS names a folder with overspill, gpu-check, kernel-tests and the emulated device's library. A run tries a part of the phases:
all of them with OVERSPILL_TEST_PART=all, those of a number from 0 with that number, and without it those of the present second.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = pathlib.Path(os.environ["OVERSPILL_PROGRAMS"])
SCALE = "0.005"

# Phases that run in the same part. Each part takes about as long.
PARTS = [("joins",), ("correctness", "peers"), ("indexes", "floors", "queries")]
PART = os.environ.get("OVERSPILL_TEST_PART", str(int(time.time())))

# Stands for gpu-check: many checks that take no time.
QUICK_CHECKS = """#!/bin/sh
case $1 in
list) for number in $(seq 20); do echo check-$number; done ;;
hold) cat >/dev/null ;;
run) while [ $# -gt 1 ]; do if [ "$1" = --json ]; then echo '{}' >"$2"; fi; shift; done; sleep 0.05 ;;
esac
"""

# Stands for overspill: the device fails under one limit of its memory, and only then. The answers stay right, as the CPU joins instead.
FAILS_UNDER_A_LIMIT = """#!/bin/sh
case "$*" in
*gpu_memory_limit=16777216*) OVERSPILL_EMULATED='fail=launch:30' exec {overspill} "$@" ;;
*) exec {overspill} "$@" ;;
esac
"""


def session(phase, folder, *arguments, programs=PROGRAMS):
    command = [sys.executable, ROOT / "scripts/gpu-session", phase, "--programs", programs, "--results", folder, "--scale", SCALE,
               "--device", "emulated", *arguments]
    # What a killed session leaves stays in the folder of the test.
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def archived(folder, phase):
    """The session's report and the names of all files in its archive."""
    with tarfile.open(folder / f"{phase}.tar.gz") as archive:
        return json.load(archive.extractfile(f"{phase}/session.json")), archive.getnames()


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="overspill-gpu-session-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)


class Phases(Folder):
    """Each phase alone runs to its end, and what it measured is in its archive."""

    def runs(self, phase, *files):
        if PART != "all" and phase not in PARTS[int(PART) % len(PARTS)]:
            self.skipTest("it is of another part: OVERSPILL_TEST_PART=all runs all")
        running = session(phase, self.folder)
        printed, _ = running.communicate()
        self.assertEqual(running.returncode, 0, printed)
        report, names = archived(self.folder, phase)
        for name in files:
            self.assertIn(f"{phase}/{name}", names, printed)
        left = [path.name for path in self.folder.iterdir() if path.name != f"{phase}.tar.gz"]
        self.assertEqual(left, [], "left behind")
        return {step["name"]: step for step in report["steps"]}, printed

    def test_correctness(self):
        steps, printed = self.runs("correctness", "machine.txt", "check-mapping.json", "tests-partition.txt")
        missing = {name for name, step in steps.items() if step["status"] == "skipped"}
        self.assertLessEqual(missing, {"memcheck", "synccheck", "check-transfer-coherence"}, printed)

    def test_joins(self):
        compressed = ["answers-cpu_partitioned-compressed.json", "join-gpu_no_partition-compressed.json"]
        files = ["answers-triton.json", "join-2GiB.json", "sizes-points.ndjson", "busy-share.json", *compressed]
        steps, printed = self.runs("joins", *files)
        self.assertEqual({step["status"] for step in steps.values()}, {"ok"}, printed)

    def test_indexes(self):
        steps, printed = self.runs("indexes", "paper3-3.json", "paper3-5-points.ndjson", "paper3-8.json")
        self.assertEqual({step["status"] for step in steps.values()}, {"ok"}, printed)

    def test_floors(self):
        steps, printed = self.runs("floors", "transfer.json", "tpch-gpu.json", "tpch-rows.json")
        self.assertEqual({step["status"] for step in steps.values()}, {"ok"}, printed)

    def test_queries(self):
        steps, printed = self.runs("queries", "paper5-1.json", "paper5-4.json", "paper5-5.json", "load.json")
        self.assertEqual({step["status"] for step in steps.values()}, {"ok"}, printed)

    def test_peers(self):
        steps, printed = self.runs("peers", "ours-triton-pairs.json", "codec.json")
        for name in ("ours-triton-pairs", "codec"):
            self.assertEqual(steps[name]["status"], "ok", printed)


class Limits(unittest.TestCase):
    def test_each_phase_fits_a_command_on_a_rented_machine(self):
        for phase in ("correctness", "joins", "indexes", "floors", "peers", "queries"):
            listed = subprocess.run([sys.executable, ROOT / "scripts/gpu-session", phase, "--device", "gpu", "--list"], capture_output=True, text=True)
            self.assertEqual(listed.returncode, 0, listed.stderr)


class Failures(Folder):
    def test_a_failure_under_a_limit_alone_is_reported(self):
        self.program("overspill", FAILS_UNDER_A_LIMIT.format(overspill=(PROGRAMS / "overspill").resolve()))
        running = session("joins", self.folder / "results", "--only", "answers-cpu", "--only", "answers-gpu_no_partition", programs=self.folder)
        printed, _ = running.communicate()
        self.assertEqual(running.returncode, 1, printed)
        report, names = archived(self.folder / "results", "joins")
        self.assertEqual({step["name"]: step["status"] for step in report["steps"]}, {"answers-cpu": "ok", "answers-gpu_no_partition": "FAILED"})
        with tarfile.open(self.folder / "results/joins.tar.gz") as archive:
            said = archive.extractfile("joins/answers-gpu_no_partition.txt").read().decode()
        self.assertIn("ok: gpu_no_partition, ample GPU memory", said)
        self.assertIn("FAILED: gpu_no_partition, 16777216 bytes of GPU memory", said)
        self.assertIn("the GPU failed: ", said)
        self.assertNotIn("the answer is", said)

    def test_a_check_that_hangs_ends_alone(self):
        self.program("gpu-check", QUICK_CHECKS.replace("run) while", "run) [ $3 = check-2 ] && sleep 600; while"))
        running = session("correctness", self.folder / "results", "--only", "check-1", "--only", "check-2", "--only", "check-3", "--patience", "0.2",
                          programs=self.folder)
        printed, _ = running.communicate()
        self.assertEqual(running.returncode, 1, printed)
        report, _ = archived(self.folder / "results", "correctness")
        self.assertEqual([step["status"] for step in report["steps"]], ["ok", "FAILED", "ok"])
        self.assertIn("did not end within", report["steps"][1]["reason"])

    def test_a_session_killed_at_random_keeps_all_finished_steps(self):
        self.program("gpu-check", QUICK_CHECKS)
        seed = random.randrange(1 << 32)
        moments = random.Random(seed)
        kept = 0
        for run in range(20):
            results = self.folder / f"results-{run}"
            results.mkdir()
            output = results / "printed"
            with output.open("w") as file:
                command = [sys.executable, ROOT / "scripts/gpu-session", "correctness", "--programs", self.folder, "--results", results,
                           "--device", "emulated"]
                running = subprocess.Popen([str(part) for part in command], stdout=file, stderr=file, env=os.environ | {"TMPDIR": str(results)})
            time.sleep(moments.uniform(0.2, 1.6))
            running.send_signal(signal.SIGKILL)
            running.wait()
            finished = {line.split()[3] for line in output.read_text().splitlines() if line.startswith("ok ") and line.endswith(tuple("0123456789"))}
            if not finished:
                continue
            report, names = archived(results, "correctness")
            there = {step["name"] for step in report["steps"]}
            self.assertLessEqual(finished, there, f"seed {seed}, run {run}")
            self.assertLessEqual({f"correctness/{name}.json" for name in finished}, set(names), f"seed {seed}, run {run}")
            kept += len(finished)
        self.assertGreater(kept, 20, f"seed {seed}: sessions were killed before they did anything")
        # Nothing that they started lives on.
        time.sleep(0.5)
        listed = subprocess.run(["pgrep", "-f", str(self.folder)], capture_output=True, text=True).stdout.split()
        self.assertEqual(listed, [], "processes of killed sessions")

    def test_a_full_disk_keeps_the_archive_before(self):
        self.program("gpu-check", QUICK_CHECKS)
        results = self.folder / "results"
        limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh"]
        command = [*limited, sys.executable, ROOT / "scripts/gpu-session", "correctness", "--programs", self.folder, "--results", results,
                   "--device", "emulated", "--only", "check-1", "--only", "tests-prefix_sum"]
        # The tests of the kernels are not there: a program that prints more than a file may hold stands for them.
        self.program("kernel-tests", "#!/bin/sh\nhead -c 20000 /dev/urandom | base64\n")
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=os.environ | {"TMPDIR": str(self.folder)})
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        report, names = archived(results, "correctness")
        self.assertEqual(report["steps"][0]["name"], "check-1")
        self.assertIn("correctness/check-1.json", names)


if __name__ == "__main__":
    unittest.main()
